// Formulas: \( \), \[ \], $ $ and $$ $$, by KaTeX, which is loaded when the first one is seen.
import * as libraries from "./library/libraries.js";

// A formula has no blank line. Its length is bounded, so that many openings without an end stay cheap.
const BODY = "((?:[^\\n]|\\n(?![ \\t]*\\n)){1,4000}?)";
const DOLLAR = /^\$(?!\s)((?:\\.|[^$\\\n]){1,1000}?)(?<!\s)\$(?![\d\p{L}])/u;    // "$5 and $10" is none
const INLINE = [new RegExp(`^\\\\\\(${BODY}\\\\\\)`), new RegExp(`^\\\\\\[${BODY}\\\\\\]`), new RegExp(`^\\$\\$${BODY}\\$\\$`), DOLLAR];
const BLOCK = ` {0,3}(?:\\\\\\[${BODY}\\\\\\]|\\$\\$${BODY}\\$\\$)[ \\t]*(?:\\n+|$)`;
const BEGINS_BLOCK = new RegExp("^" + BLOCK), BLOCK_IN_TEXT = new RegExp("\\n" + BLOCK);
const inlineStart = text => text.match(/\\[([]|\$/)?.index;
const blockStart = text => text.split(/\n[ \t]*\n/, 1)[0].match(BLOCK_IN_TEXT)?.index;   // in this paragraph
// Bounds on what one formula may cost; \href, \includegraphics and \html... stay forbidden (trust).
const OPTIONS = {throwOnError: false, trust: false, strict: "ignore", maxSize: 50, maxExpand: 500, output: "htmlAndMathml"};
const LONGEST = 20000;
const DEEPEST = 300;   // elements in each other
const SLICE = 100;     // ms
// Macros of a formula's own: a few make millions of symbols, since maxExpand counts expansions, not what comes of them, and
// those of \edef not at all (CVE-2024-28243). The distance of rows is the one that answers do define.
const DEFINES = /\\(?:[egx]?def|(?:future)?let|(?:new|renew|provide)command)(?![A-Za-z@]|\s*\{?\\arraystretch\}?\s*\{[\d.]*\})/;

const escaped = text => text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c]);

function extension(name, level, patterns, start) {
  return {
    name, level,
    start,
    tokenizer(text) {
      for (const pattern of patterns) {
        const found = pattern.exec(text);
        if (found) return {type: name, raw: found[0], formula: found[1] ?? found[2], display: level === "block" || /^(\$\$|\\\[)/.test(found[0])};
      }
    },
    renderer: token => {
      const span = `<span class="${token.display ? "formula display" : "formula"}">${escaped(token.formula)}</span>`;
      return level === "block" ? `<p>${span}</p>` : span;
    },
  };
}

export const mathematicsExtensions = libraries.mathematics
  ? [extension("formula_block", "block", [BEGINS_BLOCK], blockStart), extension("formula", "inline", INLINE, inlineStart)]
  : [];

let loading = null;

function load() {
  loading ??= (async () => {
    const style = Object.assign(document.createElement("link"), {rel: "stylesheet", href: new URL("./library/katex.css", import.meta.url).href});
    document.head.append(style);
    await import("./library/katex.js");
  })();
  return loading;
}

// style="" of an element is forbidden by the page's policy; the same through the object model is not.
function applyStyles(element) {
  for (const styled of element.querySelectorAll("[style]")) styled.style.cssText = styled.getAttribute("style");
}

const depthOf = element => 1 + Math.max(0, ...[...element.children].map(depthOf));

// A formula that defines macros stays text, and so does one that is nested too deep: KaTeX throws at the end of the stack, and
// Chromium does not survive the layout of a thousand elements in each other, which are 150 roots.
function draw(element) {
  const formula = element.textContent, drawn = document.createElement("span");
  if (formula.length > LONGEST || DEFINES.test(formula)) return;
  try {
    self.katex.render(formula, drawn, {...OPTIONS, displayMode: element.classList.contains("display")});
    if (depthOf(drawn) > DEEPEST) return;
  } catch {
    return;
  }
  applyStyles(drawn);
  element.replaceChildren(...drawn.childNodes);
}

// Thousands of formulas do not hold the page up: the later ones are drawn between other things.
function drawAll(formulas) {
  const start = performance.now();
  while (formulas.length && performance.now() - start < SLICE) draw(formulas.shift());
  if (formulas.length) setTimeout(() => drawAll(formulas.filter(element => element.isConnected)));
}

export function decorateMathematics(fragment) {
  const formulas = [...fragment.querySelectorAll("span.formula")];
  if (!formulas.length) return;
  if (self.katex) drawAll(formulas);
  else load().then(() => drawAll(formulas), () => {});
}
