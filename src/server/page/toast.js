// A line at the bottom that goes by itself, with a way back where there is one. It stands in the dialog that is open: one
// that is open covers all else, and no press gets there.
import {byId, make} from "./dom.js";

let timer = 0;

document.addEventListener("close", event => event.target.contains(byId("toast")) && document.body.append(byId("toast")), true);

export function toast(text, label, action) {
  const box = byId("toast");
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.replaceChildren(make("span", {}, text));
  if (action) box.append(make("button", {type: "button", class: "plain", onclick: () => { box.hidden = true; action(); }}, label));
  box.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => box.hidden = true, action ? 10000 : 4000);
}
