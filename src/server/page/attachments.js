// Text files beside a message: chosen by button, dropped, or pasted. A message keeps them as files: [{name, text}].
import {byId, icon, make} from "./dom.js";

const LARGEST = 2 << 20;                              // bytes of a file
const PASTED_CHARACTERS = 4000, PASTED_LINES = 60;    // more than this of a paste becomes a file

export const isLarge = text => text.length > PASTED_CHARACTERS || text.split("\n").length > PASTED_LINES;

// Throws an Error with a line to show.
async function read(file) {
  if (file.size > LARGEST) throw new Error(`${file.name} is larger than 2 MB`);
  let bytes = null;
  try {
    bytes = await file.arrayBuffer();
  } catch {
    throw new Error(`${file.name} cannot be read: is it a folder?`);
  }
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(bytes);
    if (!text.includes("\0")) return {name: file.name, text};
  } catch {
    // It is no text either.
  }
  throw new Error(`${file.name} is not a text file (UTF-8)`);
}

// A fence that the text does not have.
function fenceOf(text) {
  const longest = Math.max(2, ...(text.match(/^ {0,3}`{3,}/gm) ?? []).map(run => run.trim().length));
  return "`".repeat(longest + 1);
}

function block({name, text}) {
  const fence = fenceOf(text), ending = name.match(/\.(\w{1,10})$/)?.[1] ?? "";
  return `${name}:\n${fence}${ending}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

// A user's message as the model gets it.
export const textWithFiles = ({content, files = []}) => [content, ...files.map(block)].filter(Boolean).join("\n\n");

function sizeOf(text) {
  const lines = text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
  return `${lines.toLocaleString("en")} ${lines === 1 ? "line" : "lines"}`;
}

const label = ({name, text}) => `${name} · ${sizeOf(text)}`;

// In a message that was sent; the text is drawn when it is opened.
export function fileBox(file) {
  const box = make("details", {class: "file"}, make("summary", {}, label(file)));
  box.addEventListener("toggle", () => box.open && !box.querySelector("pre") && box.append(make("pre", {tabindex: "0"}, file.text)));
  return box;
}

// Those of the message that is being written.
export class Attachments {
  // actions: {changed(files), notice(text)}
  constructor(actions, files) {
    this.actions = actions;
    this.files = files;
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", () => this.add([...byId("file").files]).then(() => byId("file").value = ""));
    this.draw();
  }

  // Whole: a file that cannot be taken keeps none of the others out.
  async add(files) {
    const results = await Promise.allSettled(files.map(read));
    this.actions.notice(results.filter(({status}) => status === "rejected").map(({reason}) => reason.message).join("; "));
    this.set([...this.files, ...results.filter(({status}) => status === "fulfilled").map(({value}) => value)]);
  }

  addText(text) {
    this.set([...this.files, {name: "pasted text", text}]);
  }

  // True: the paste or drop is taken.
  take(event, data) {
    if (!data) return false;
    const files = [...data.files], text = event.type === "paste" ? data.getData("text/plain") : "";
    if (files.length && !text) this.add(files);
    else if (isLarge(text)) this.addText(text);
    else return false;
    event.preventDefault();
    return true;
  }

  set(files) {
    this.files = files;
    this.draw();
    this.actions.changed(files);
  }

  draw() {
    const chips = this.files.map((file, i) => make("li", {class: "chip"}, make("span", {}, label(file)),
      make("button", {type: "button", class: "round small", "aria-label": `Remove ${file.name}`,
                      onclick: () => this.set(this.files.filter((_, at) => at !== i))}, icon("close"))));
    byId("files").replaceChildren(...chips);
    byId("files").hidden = !chips.length;
  }
}
