// Code: its language, a button that copies it, and colours.
import {copyButton} from "./clipboard.js";
import {make} from "./dom.js";
import * as libraries from "./library/libraries.js";
import {spans} from "./safe_html.js";

const LONGEST = 60000;        // characters that are coloured; more would hold the page up
const LONGEST_GROWING = 8000; // while more is coming

let loading = null;

function load() {
  loading ??= libraries.highlighting ? import("./library/highlight.js").then(() => self.hljs) : Promise.resolve(null);
  return loading;
}

function colour(code, language) {
  const text = code.textContent;
  // highlight.js 9, as Debian has it: (language, text, whether errors are ignored).
  code.replaceChildren(spans(self.hljs.highlight(language, text, true).value));
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
