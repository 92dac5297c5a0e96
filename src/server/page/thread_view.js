// The messages of the conversation that is shown.
import {path, siblings} from "./conversation.js";
import {byId, prefersStill} from "./dom.js";
import {MessageView} from "./message_view.js";

const AT_ONCE = 8;   // messages from the end that are drawn before anything else
const SLICE = 12;    // ms of drawing older ones between other things
const NEAR = 8;   // pixels from the end within which the page follows new text; a step up ends that

export class ThreadView {
  constructor(actions) {
    this.actions = actions;
    this.views = new Map();   // id of a node: its view
    this.follows = true;
    this.top = 0;             // where it was scrolled to
    this.waiting = [];        // views whose text is still to be drawn
    this.timer = 0;
    byId("scroll").addEventListener("scroll", () => this.noticeScroll(), {passive: true});
    byId("to-end").addEventListener("click", () => this.toEnd(!prefersStill()));
  }

  place(node) {
    const all = siblings(this.conversation, node);
    return {count: all.length, at: all.indexOf(node)};
  }

  // Draws what has changed since: views of the path's beginning that are there already stay.
  show(conversation) {
    if (this.conversation !== conversation) this.clear();
    this.conversation = conversation;
    const nodes = path(conversation), shown = new Set(nodes.map(node => node.id));
    for (const [id, view] of this.views) if (!shown.has(id)) this.drop(id, view);
    nodes.forEach((node, i) => this.showNode(node, i >= nodes.length - AT_ONCE));
    const first = nodes.findIndex(node => node.id === conversation.from);
    nodes.forEach((node, i) => this.views.get(node.id).markFirst(i === first && i > 0));
    this.drawWaiting();
    byId("empty").hidden = nodes.length > 0;
    this.askResults();
  }

  showNode(node, now) {
    const view = this.views.get(node.id);
    if (view) {
      if (!view.growing) view.drawFoot(this.place(node));
      return;
    }
    const made = new MessageView(node, this.place(node), this.actions);
    this.views.set(node.id, made);
    byId("thread").append(made.root);
    if (now) made.drawText();
    else this.waiting.push(made);
  }

  // The older ones, newest first.
  drawWaiting() {
    const start = performance.now();
    while (this.waiting.length && performance.now() - start < SLICE) this.waiting.pop().drawText();
    this.follow();
    if (this.waiting.length) this.timer ||= setTimeout(() => { this.timer = 0; this.drawWaiting(); }, 0);
  }

  // A message whose text has changed.
  redraw(node) {
    const made = new MessageView(node, this.place(node), this.actions), before = this.views.get(node.id);
    before.root.replaceWith(made.root);
    this.views.set(node.id, made);
    made.drawText();
    if (before.thought?.open) made.openThought();
  }

  // The answer whose calls wait for their results: it has come to its end, and nothing but results stands behind it.
  openCalls() {
    const nodes = path(this.conversation), caller = nodes.findLast(node => node.role !== "tool");
    const cutOff = caller?.error || caller?.finish === "length";
    if (!caller?.calls || cutOff || this.views.get(caller.id).growing) return {open: []};
    const answered = new Set(nodes.filter(node => node.role === "tool").map(node => node.callId));
    return {caller, open: caller.calls.filter(call => !answered.has(call.id))};
  }

  askResults() {
    const {caller, open} = this.openCalls(), ids = new Set(open.map(call => call.id));
    for (const form of byId("thread").querySelectorAll(".call .row"))
      if (!ids.has(form.parentElement.dataset.call)) form.remove();
    const asked = open.map(call => this.views.get(caller.id).askResult(call));
    const lost = document.activeElement === document.body;   // with the form before it
    if (lost || asked.some(Boolean)) byId("thread").querySelector(".call .row textarea")?.focus();
  }

  drop(id, view) {
    view.root.remove();
    this.views.delete(id);
  }

  clear() {
    for (const [id, view] of this.views) this.drop(id, view);
    this.waiting = [];
    this.follows = true;
  }

  // The view of an answer in flight, which grows from now on.
  attach(answer) {
    const view = this.views.get(answer.node.id);
    answer.view = view;
    view.begin(() => this.follow());
    if (answer.node.reasoning && !answer.node.content) view.addReasoning("");
    this.follow();
  }

  view(node) {
    return this.views.get(node.id);
  }

  noticeScroll() {
    const box = byId("scroll");
    if (box.scrollHeight - box.scrollTop - box.clientHeight < NEAR) this.follows = true;
    else if (box.scrollTop < this.top) this.follows = false;
    this.top = box.scrollTop;
    byId("to-end").hidden = this.follows;
  }

  follow() {
    if (this.follows) this.toEnd(false);
  }

  toEnd(smoothly) {
    const box = byId("scroll");
    this.follows = true;
    box.scrollTo({top: box.scrollHeight, behavior: smoothly ? "smooth" : "instant"});
  }
}
