// Where a message is written. Its button sends; while an answer comes, it stops.
import {Attachments} from "./attachments.js";
import {keep, kept} from "./browser_storage.js";
import {byId, growing, icon} from "./dom.js";
import {composes, sendKey, sends} from "./enter.js";

const DRAFT = "moesaic.draft", DRAFT_FILES = "moesaic.draft.files";

function draftFiles() {
  try {
    return JSON.parse(kept("sessionStorage", DRAFT_FILES)) ?? [];
  } catch {
    return [];
  }
}

export class Composer {
  // actions: {send(text, files), stop(), editLast()}
  constructor(actions) {
    this.actions = actions;
    this.area = byId("message");
    this.fit = growing(this.area);
    this.busy = false;
    this.area.value = kept("sessionStorage", DRAFT) ?? "";
    const changed = files => {
      keep("sessionStorage", DRAFT_FILES, JSON.stringify(files));
      this.showButton();
    };
    this.attachments = new Attachments({changed, notice}, draftFiles());
    this.area.addEventListener("paste", event => this.attachments.take(event, event.clipboardData));
    const room = byId("room");
    room.addEventListener("dragover", event => event.dataTransfer.types.includes("Files") && event.preventDefault());
    room.addEventListener("drop", event => this.attachments.take(event, event.dataTransfer));
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
    if (composes(event)) return;
    if (event.key === "ArrowUp" && !this.area.value) return this.actions.editLast(event);
    if (!sends(event)) return;
    event.preventDefault();
    if (!this.busy) this.press();
  }

  press() {
    if (this.busy) return this.actions.stop();
    const text = this.area.value, {files} = this.attachments;
    if (this.empty() || !this.actions.send(text, files)) return;
    this.set("");
    this.attachments.set([]);
  }

  empty() {
    return !this.area.value.trim() && !this.attachments.files.length;
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
    button.title = this.busy ? "Stop (Esc)" : `Send (${sendKey()})`;
    button.setAttribute("aria-disabled", String(!this.busy && this.empty()));
  }

  focus() {
    this.area.focus();
  }
}

// A line above the message; empty: none.
export function notice(text) {
  byId("notice").textContent = text;
}
