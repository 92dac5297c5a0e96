// One message on the screen. An answer's text, reasoning and calls can grow.
import {fileBox} from "./attachments.js";
import {copyButton} from "./clipboard.js";
import {growing, icon, iconButton, make} from "./dom.js";
import {composes, sendKey, sends} from "./enter.js";
import {drawMarkdown, MarkdownStream} from "./markdown_stream.js";

const NAMES = {user: "You", assistant: "Answer", tool: "Result"};

function branches({count, at}, go) {
  if (count < 2) return null;
  const back = iconButton("left", "Version before", () => go(-1)), on = iconButton("right", "Version behind", () => go(1));
  back.disabled = at === 0;
  on.disabled = at === count - 1;
  return make("span", {class: "branches"}, back, make("span", {}, `${at + 1} / ${count}`), on);
}

export function summaryOf({tokens, before = 0, rate, first, prompt, cached}) {
  const all = tokens + before;
  const parts = [all ? `${all} ${all === 1 ? "token" : "tokens"}` : "", rate ? `${rate.toFixed(rate < 100 ? 1 : 0)} tok/s` : "", first ? `first after ${first.toFixed(2)} s` : "",
                 prompt ? `prompt ${prompt}${cached ? ` (${cached} cached)` : ""}` : ""];
  return parts.filter(Boolean).join(" · ");
}

// actions: what a reader can do with a message: edit(node, text), again(node), go(node, step), erase(node),
// result(call, text), carryOn(node), leaveOut(node), sendAll()
export class MessageView {
  // place: {count, at} among its siblings
  constructor(node, place, actions) {
    this.node = node;
    this.actions = actions;
    this.root = make("article", {class: `message ${node.role}`, "data-id": node.id}, make("h2", {class: "unseen"}, NAMES[node.role]));
    this.body = this.root.appendChild(make("div", {class: "body", dir: node.role === "user" ? "auto" : null}));
    this.foot = this.root.appendChild(make("div", {class: "foot"}));
    if (node.role === "assistant") this.fillAnswer();
    else this.body.append(node.content, ...(node.files ?? []).map(fileBox));
    this.drawFoot(place);
  }

  fillAnswer() {
    const {node} = this;
    this.thought = make("details", {class: "thought", hidden: !node.reasoning}, make("summary", {}, "Thoughts"));
    this.thoughtText = this.thought.appendChild(make("div", {class: "markdown"}));
    this.thought.addEventListener("toggle", () => this.drawThought());
    this.text = make("div", {class: "markdown"});
    this.calls = make("div", {class: "calls"});
    this.root.insertBefore(this.thought, this.body);
    this.body.append(this.text, this.calls);
    if (node.content) this.text.append(make("div", {class: "plain-text"}, node.content));
    for (const call of node.calls ?? []) this.drawCall(call);
  }

  // above: the messages before it are not sent any more.
  markFirst(above) {
    this.root.querySelector(".first-sent")?.remove();
    if (!above) return;
    this.root.prepend(make("p", {class: "first-sent soft"}, "What stands above is not sent any more ",
      make("button", {type: "button", class: "plain", onclick: () => this.actions.sendAll()}, "Send it again")));
  }

  // Until then an answer is plain text: a long conversation is not drawn in one go.
  drawText() {
    if (!this.text || this.growing || !this.node.content) return;
    this.text.replaceChildren();
    drawMarkdown(this.text, this.node.content);
  }

  // Hidden reasoning costs nothing: it is drawn when it is opened.
  drawThought() {
    if (!this.thought.open || this.thoughts) return;
    this.thoughts = new MarkdownStream(this.thoughtText);
    this.thoughts.append(this.node.reasoning ?? "");
    if (!this.growing) this.thoughts.end();
  }

  openThought() {
    this.thought.open = true;
    this.drawThought();
  }

  // Until finish(), text comes in. drawn(): something has been drawn.
  begin(drawn) {
    this.growing = true;
    this.showWaiting("");
    for (const before of [this.stream, this.thoughts]) clearTimeout(before?.timer);
    this.thoughts = null;
    this.thoughtText.replaceChildren();
    this.drawThought();
    this.stream = new MarkdownStream(this.text, drawn);
    if (this.node.content) this.stream.append(this.node.content);
    this.text.replaceChildren();
    if (!this.node.content) this.text.append(make("span", {class: "waiting", "aria-label": "waiting", role: "img"}));
    this.root.setAttribute("aria-busy", "true");
  }

  addReasoning(text) {
    this.thought.hidden = false;
    this.thought.firstChild.textContent = "Thinking";
    this.thought.classList.add("active");
    this.thoughts?.append(text);
  }

  addContent(text) {
    if (!this.stream.text) this.text.replaceChildren();
    this.thought.classList.remove("active");
    this.stream.append(text);
  }

  drawCall(call) {
    const code = make("code", {}, `${call.name}(${call.arguments})`);
    const box = this.calls.appendChild(make("div", {class: "call", "data-call": call.id}, code));
    return {code, box};
  }

  setCall(call) {
    const box = this.calls.querySelector(`[data-call="${CSS.escape(call.id)}"]`);
    const code = box?.firstChild ?? this.drawCall(call).code;
    code.textContent = `${call.name}(${call.arguments})`;
  }

  // Asks the reader for what the function returns, once.
  askResult(call) {
    const box = this.calls.querySelector(`[data-call="${CSS.escape(call.id)}"]`);
    if (box.querySelector(".row")) return null;
    const area = make("textarea", {rows: 1, dir: "auto", placeholder: "What does it return?", "aria-label": `Result of ${call.name}`});
    const send = () => area.value.trim() && this.actions.result(call, area.value);
    const form = make("div", {class: "row"}, area, make("button", {type: "button", class: "plain", onclick: send}, "Return"));
    area.addEventListener("keydown", event => {
      if (!sends(event)) return;
      event.preventDefault();
      send();
    });
    growing(area);
    box.append(form);
    return area;
  }

  finish(place) {
    this.growing = false;
    if (this.stream) this.text.replaceChildren(...(this.stream.text ? this.text.childNodes : []));
    this.stream?.end();
    this.thoughts?.end();
    this.thought.firstChild.textContent = "Thoughts";
    this.thought.classList.remove("active");
    this.root.removeAttribute("aria-busy");
    this.drawFoot(place);
  }

  showSummary(stats) {
    this.footState = null;
    this.foot.replaceChildren(make("span", {class: "stats"}, summaryOf(stats)));
  }

  // Says why nothing has come yet; empty: no reason is known.
  showWaiting(message) {
    this.footState = null;
    this.foot.replaceChildren(...(message ? [make("span", {class: "stats"}, message)] : []));
  }

  buttons() {
    const {node, actions} = this;
    if (node.role === "tool") return [];
    const last = [iconButton("delete", "Delete from here", () => actions.erase(node))];
    const again = [iconButton("again", node.refused ? "Send again" : "Ask again", () => actions.again(node))];
    return [copyButton("Copy", () => node.content), iconButton("edit", "Edit", () => this.edit()),
            ...(node.role === "assistant" || node.refused ? again : []), ...last];
  }

  // The style sheet shows it for the last message alone.
  canGoOn() {
    const {role, error, finish, content, reasoning, calls} = this.node;
    return role === "assistant" && (!!error || finish === "length") && !!(content || reasoning) && !calls;
  }

  drawFoot(place) {
    const {node} = this;
    const state = JSON.stringify([place, node.refused, node.tooLong, node.error, node.finish, node.stats]);
    if (state === this.footState) return;   // a button in it may have the focus
    this.footState = state;
    this.root.classList.toggle("refused", !!node.refused);
    const trouble = node.refused ? `Not sent: ${node.refused}` : node.error;
    const children = [make("span", {class: "tools"}, ...this.buttons()), branches(place, step => this.actions.go(node, step)),
      node.stats && make("span", {class: "stats"}, summaryOf(node.stats)), trouble && make("span", {class: "trouble"}, trouble),
      node.tooLong && make("button", {type: "button", class: "plain leave-out", onclick: () => this.actions.leaveOut(node)}, "Leave the oldest turns out"),
      node.finish === "length" && make("span", {class: "trouble"}, "Cut off at the limit of tokens"),
      this.canGoOn() && make("button", {type: "button", class: "plain go-on", onclick: () => this.actions.carryOn(node)}, "Continue")];
    this.foot.replaceChildren(...children.filter(Boolean));
  }

  isEdited() {
    return !!this.root.querySelector(".editor");
  }

  edit() {
    if (this.isEdited()) return;
    const area = make("textarea", {"aria-label": "Message", dir: "auto"});
    area.value = this.node.content;
    const cancel = () => {
      editor.remove();
      this.body.hidden = this.foot.hidden = false;
    };
    const word = this.node.role === "user" ? "Send" : "Save";
    const done = () => (area.value.trim() || this.node.files?.length) && this.actions.edit(this.node, area.value);
    const editor = make("div", {class: "editor"}, area, make("div", {class: "row end"},
      make("button", {type: "button", class: "plain", onclick: cancel}, "Cancel"),
      make("button", {type: "button", class: "plain main", title: `${word} (${sendKey()})`, onclick: done}, word)));
    area.addEventListener("keydown", event => {
      if (composes(event)) return;
      if (event.key === "Escape") cancel();
      else if (sends(event)) done();
      else return;
      event.stopPropagation();
      event.preventDefault();
    });
    this.body.hidden = this.foot.hidden = true;
    this.root.append(editor);
    growing(area)();
    area.focus();
  }
}
