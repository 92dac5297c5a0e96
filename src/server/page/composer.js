// Where a message is written. Its button sends; while an answer comes, it stops.
import {keep, kept} from "./browser_storage.js";
import {byId, growing, icon} from "./dom.js";
import {settings} from "./settings.js";

const DRAFT = "moesaic.draft";
// Keyboards on glass have no Shift+Enter: there, Enter breaks the line and the button sends.
const onGlass = matchMedia("(hover: none) and (pointer: coarse)");

export class Composer {
  // actions: {send(text), stop(), editLast()}
  constructor(actions) {
    this.actions = actions;
    this.area = byId("message");
    this.fit = growing(this.area);
    this.busy = false;
    this.area.value = kept("sessionStorage", DRAFT) ?? "";
    this.area.addEventListener("input", () => this.onInput());
    this.area.addEventListener("keydown", event => this.onKey(event));
    byId("composer").addEventListener("submit", event => {
      event.preventDefault();
      this.press();
    });
    this.fit();
    this.showButton();
  }

  onInput() {
    keep("sessionStorage", DRAFT, this.area.value);
    this.showButton();
  }

  onKey(event) {
    if (event.isComposing) return;
    if (event.key === "ArrowUp" && !this.area.value) return this.actions.editLast(event);
    const plain = !event.shiftKey && !event.altKey, sends = settings.sendByEnter && !onGlass.matches;
    if (event.key !== "Enter" || !plain || (!sends && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    if (!this.busy) this.press();
  }

  press() {
    if (this.busy) return this.actions.stop();
    const text = this.area.value;
    if (!text.trim()) return;
    if (this.actions.send(text)) this.set("");
  }

  set(text) {
    this.area.value = text;
    this.onInput();
    this.fit();
  }

  setBusy(busy) {
    this.busy = busy;
    this.showButton();
  }

  showButton() {
    const button = byId("send"), name = this.busy ? "stop" : "send";
    const label = this.busy ? "Stop" : "Send";
    if (button.dataset.name !== name) button.replaceChildren(icon(name));
    button.dataset.name = name;
    button.setAttribute("aria-label", label);
    button.title = this.busy ? "Stop (Esc)" : "Send (Enter)";
    button.setAttribute("aria-disabled", String(!this.busy && !this.area.value.trim()));
  }

  focus() {
    this.area.focus();
  }
}

// A line above the message; empty: none.
export function notice(text) {
  byId("notice").textContent = text;
}
