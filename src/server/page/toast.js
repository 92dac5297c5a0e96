// A line at the bottom that goes by itself, with a way back where there is one.
import {byId, make} from "./dom.js";

let timer = 0;

export function toast(text, label, action) {
  const box = byId("toast");
  box.replaceChildren(make("span", {}, text));
  if (action) box.append(make("button", {type: "button", class: "plain", onclick: () => { box.hidden = true; action(); }}, label));
  box.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => box.hidden = true, action ? 10000 : 4000);
}
