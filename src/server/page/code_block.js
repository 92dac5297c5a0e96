// Code: its language, a button that copies it, and colours.
import {copyButton} from "./clipboard.js";
import {make} from "./dom.js";
import * as libraries from "./library/libraries.js";
import {spans} from "./safe_html.js";

const LONGEST = 60000;        // characters that are coloured; more would hold the page up
const LONGEST_GROWING = 8000; // while more is coming
const LONGEST_TIME = 300;     // ms
const PIECE = /[^]{1,2000}(?:\n|$)|[^]{1,2000}/gu;   // whole lines, where they are not longer

let loading = null;

function load() {
  loading ??= libraries.highlighting ? import("./library/highlight.js").then(() => self.hljs) : Promise.resolve(null);
  return loading;
}

// In pieces, and as far as there is time: with some texts the highlighter's time grows with the square of their length.
function colour(code, language) {
  const start = performance.now(), coloured = document.createDocumentFragment();
  let state = null;
  for (const [piece] of code.textContent.matchAll(PIECE)) {
    const late = performance.now() - start > LONGEST_TIME;
    // highlight.js 9, as Debian has it: (language, text, whether errors are ignored, the state behind the text before).
    const {value, top} = late ? {} : self.hljs.highlight(language, piece, true, state);
    coloured.append(late ? piece : spans(value));
    state = top;
  }
  code.replaceChildren(coloured);
}

function highlight(code, language, whole) {
  if (!language || code.textContent.length > (whole ? LONGEST : LONGEST_GROWING)) return;
  const known = () => self.hljs?.getLanguage(language) && colour(code, language);
  if (self.hljs) known();
  else load().then(known, () => {});
}

export function decorateCode(fragment, whole) {
  for (const code of fragment.querySelectorAll("pre > code")) {
    const language = code.className.match(/language-([\w+#.-]+)/)?.[1]?.toLowerCase() ?? "";
    const head = make("div", {class: "code-head"}, make("span", {}, language), copyButton("Copy code", () => code.textContent));
    const pre = code.parentElement, block = make("div", {class: "code-block"});
    pre.tabIndex = 0;
    pre.setAttribute("role", "group");
    pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
    pre.replaceWith(block);
    block.append(head, pre);
    highlight(code, language, whole);
  }
}
