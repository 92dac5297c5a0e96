// Markdown to elements that are safe to show. Three walls: the renderer below passes no HTML on but a few tags without
// attributes, DOMPurify lets a short list through, and the page's Content-Security-Policy runs and loads nothing foreign.
import {make} from "./dom.js";
import {decorateCode} from "./code_block.js";
import * as libraries from "./library/libraries.js";
import {boundMarked, unlessDeep} from "./marked_bounds.js";
import {decorateMathematics, mathematicsExtensions} from "./mathematics.js";
import {LINK, loadPurify, purified} from "./safe_html.js";

// Tags that models write in the middle of Markdown, `<br>` in tables above all. Everything else in <> is shown as it is.
const PLAIN_TAG = /^<\/?(br|sub|sup|kbd|mark|u|s|small|b|i|em|strong|del|ins|q|hr)\s*\/?>$/i;
const TAB = "\uE009";     // a tab of a code block, which marked would turn into spaces
const FENCE = /^(?:\s|>|[-*+]\s|\d+[.)]\s)*(`{3,}|~{3,})/;   // each character fits one way alone: linear

const ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"};
export const escapeHtml = text => text.replace(/[&<>"']/g, c => ENTITIES[c]);
// For texts that marked may have escaped already: addresses, titles, texts of pictures.
const escapeRest = text => text.replace(/[<>"']|&(?!#?\w+;)/g, c => ENTITIES[c]);

let marked = null;

function link(href, title, text) {
  if (!LINK.test(href ?? "")) return text;
  return `<a href="${escapeRest(href)}"${title ? ` title="${escapeRest(title)}"` : ""}>${text}</a>`;
}

const renderer = {
  html: html => PLAIN_TAG.test(html.trim()) ? html : escapeHtml(html),
  link,
  // Nothing is loaded from elsewhere: a picture is a link to it.
  image: (href, title, text) => link(href, title, "🖼 " + escapeRest(text || href || "")),
  code: (code, info) => `<pre><code class="language-${escapeHtml((info ?? "").trim().split(/\s/)[0])}">${escapeHtml(code)}\n</code></pre>`,
};

const FENCE_LINE = /^( {0,3})(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})([^\n]*)(?:\n|$)/;

// CommonMark 4.5: a fence without an end runs to the end of what it stands in, whose last line may be cut off. marked's own
// rule wants a whole line there.
function fences(src) {
  const open = src.match(FENCE_LINE);
  if (!open) return false;
  const [head, indent, fence, info] = open;
  const ends = new RegExp(`\\n {0,3}${fence[0]}{${fence.length},}[ \\t]*(?=\\n|$)`, "g"), spaces = new RegExp(`^ {0,${indent.length}}`);
  ends.lastIndex = head.length - 1;   // the newline of the first line
  const end = ends.exec(src);
  const code = end ? src.slice(head.length, end.index) : src.slice(head.length).replace(/\n$/, "");
  const text = code.split("\n").map(line => line.replace(spaces, "")).join("\n");
  return {type: "code", raw: end ? src.slice(0, ends.lastIndex) : src, lang: info.trim(), text};
}

// Before the first answer is drawn. Without the libraries, or where they do not arrive, answers are shown as plain text.
export async function loadMarkdown() {
  if (!libraries.markdown) return;
  try {
    // Either is a script for all surroundings, which in a page defines a global.
    await Promise.all([import("./library/marked.js"), loadPurify()]);
  } catch {
    return;
  }
  marked = self.marked.marked;
  boundMarked(marked);
  const tokenizer = {fences, list: unlessDeep, blockquote: unlessDeep};
  marked.use({gfm: true, breaks: false, headerIds: false, mangle: false, smartypants: false, renderer, tokenizer, extensions: mathematicsExtensions});
}

function withTabs(text) {
  if (!text.includes("\t")) return text;
  let fence = "";
  return text.split("\n").map(line => {
    const mark = line.match(FENCE)?.[1];
    if (!fence && mark) fence = mark;
    else if (fence && mark?.startsWith(fence) && line.trim() === mark) fence = "";
    else if (fence) return line.replaceAll("\t", TAB);
    return line.replace(/^( *)(\t+)/, (_, spaces, tabs) => spaces + "    ".repeat(tabs.length));
  }).join("\n");
}

export const restored = text => text.replaceAll(TAB, "\t");

// Text as blocks() wants it: the lengths of the blocks' `raw` are those of this text.
export const normalised = text => withTabs(text.replace(/\r\n?/g, "\n"));

// The top-level blocks of a normalised text; null without the libraries. A fence begins with the whole line, which a last
// line may not be yet: a newline more is then part of the last block's `raw`.
export function blocks(text) {
  const begins = FENCE.test(text.slice(text.lastIndexOf("\n") + 1));
  return marked?.lexer(begins ? text + "\n" : text);
}

// An answer's headings, whatever levels it uses, begin below the page's and skip none.
function level(fragment, headings) {
  for (const given of fragment.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
    const depth = Number(given.tagName[1]);
    headings.first ??= depth;
    headings.last = Math.max(3, Math.min(6, (headings.last ?? 2) + 1, 3 + depth - headings.first));
    const heading = make("h" + headings.last, {class: "depth-" + depth});
    heading.append(...given.childNodes);
    given.replaceWith(heading);
  }
}

function finish(fragment, headings, whole) {
  level(fragment, headings);
  for (const a of fragment.querySelectorAll("a")) {
    a.target = "_blank";
    a.rel = "noopener noreferrer nofollow";
  }
  for (const box of fragment.querySelectorAll("input")) {
    if (box.type !== "checkbox") box.remove();
    box.disabled = true;
    box.setAttribute("aria-label", box.checked ? "done" : "to do");
  }
  for (const block of fragment.querySelectorAll("ul, ol, blockquote, table")) block.dir = "auto";
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", {class: "table", tabindex: "0", role: "group", "aria-label": "Table"});
    table.replaceWith(frame);
    frame.append(table);
  }
  decorateMathematics(fragment);
  decorateCode(fragment, whole);
  return fragment;
}

// Elements for some blocks. headings: an object that lives as long as the answer. whole: nothing will follow.
export function render(tokens, headings, whole) {
  const html = restored(marked.parser(tokens));
  return finish(purified(html), headings, whole);
}
