// The list of conversations: search, and for each a menu.
import {textOf, titleOf} from "./conversation.js";
import {byId, icon, make} from "./dom.js";
import {composes} from "./enter.js";
import {openMenu} from "./menu.js";

const DAY = 86400000;

function ageOf(conversation, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (conversation.pinned) return "Pinned";
  if (conversation.changed >= midnight) return "Today";
  if (conversation.changed >= midnight - DAY) return "Yesterday";
  return conversation.changed >= midnight - 30 * DAY ? "Last 30 days" : "Older";
}

const order = (a, b) => b.pinned - a.pinned || b.changed - a.changed;

// actions: {open(id), rename(id, title), menu(conversation): items of its menu}
export class ListView {
  constructor(actions) {
    this.actions = actions;
    this.conversations = [];
    this.texts = new WeakMap();   // lower case, made when it is first searched
    byId("search").addEventListener("input", () => this.draw());
  }

  show(conversations, current) {
    this.conversations = [...conversations].sort(order);
    this.texts = new WeakMap();
    this.current = current;
    this.draw();
  }

  found() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return this.conversations;
    return this.conversations.filter(conversation => {
      if (!this.texts.has(conversation)) this.texts.set(conversation, textOf(conversation));
      const text = this.texts.get(conversation);
      return words.every(word => text.includes(word));
    });
  }

  draw() {
    if (byId("list").querySelector("input")) return;   // a title is being edited
    const found = this.found(), now = Date.now();
    let age = "";
    const rows = found.flatMap(conversation => {
      const heading = ageOf(conversation, now) === age ? [] : [make("li", {class: "age"}, age = ageOf(conversation, now))];
      return [...heading, this.row(conversation)];
    });
    if (!found.length) rows.push(make("li", {class: "age"}, byId("search").value ? "Nothing found" : "No conversations yet"));
    byId("list").replaceChildren(...rows);
  }

  row(conversation) {
    const title = titleOf(conversation), current = conversation.id === this.current;
    const open = make("button", {type: "button", class: "open", dir: "auto", "aria-current": current ? "page" : null, title,
                                 onclick: () => this.actions.open(conversation.id)}, title);
    const more = make("button", {type: "button", class: "round small", "aria-label": `More: ${title}`, "aria-haspopup": "menu",
                                 onclick: event => openMenu(event.currentTarget, this.actions.menu(conversation))}, icon("more"));
    return make("li", {class: current ? "row current" : "row", "data-id": conversation.id}, open, more);
  }

  // In its place in the list.
  editTitle(conversation) {
    const find = () => byId("list").querySelector(`[data-id="${CSS.escape(conversation.id)}"]`);
    if (!find()) {   // the search has hidden it
      byId("search").value = "";
      this.draw();
    }
    const row = find(), input = make("input", {"aria-label": "Title", maxlength: 200, dir: "auto"});
    input.value = titleOf(conversation);
    const end = keep => {
      if (!input.isConnected) return;
      row.replaceChildren();
      if (keep) this.actions.rename(conversation.id, input.value.trim());
      else this.draw();
    };
    input.addEventListener("keydown", event => {
      event.stopPropagation();
      if (composes(event)) return;
      if (event.key === "Enter") end(true);
      else if (event.key === "Escape") end(false);
    });
    input.addEventListener("blur", () => end(true));
    row.replaceChildren(input);
    input.select();
  }
}
