// An answer as it grows. What is drawn again for new text is the last block alone: a block is left as it is once a whole
// line stands behind it, and open code grows by its new characters. Drawing takes at most a fifth of the time, however
// long the block is: after d milliseconds of it the next waits for 4 d.
import {make} from "./dom.js";
import {blocks, normalised, render, restored} from "./markdown.js";

const SHORTEST_WAIT = 30;    // ms
const SHARE = 4;
const DEFINITION = /^ {0,3}\[[^\]\n]+\]:/m;

export class MarkdownStream {
  // drawn(): called after each drawing.
  constructor(target, drawn = () => {}) {
    this.target = target;
    this.drawn = drawn;
    this.text = "";         // all
    this.tail = "";         // behind the blocks that are left as they are
    this.fresh = "";        // the tail's text that is not yet drawn
    this.live = [];         // the nodes of the tail
    this.openCode = null;   // {fence, text: the node that grows}
    this.headings = {};
    this.timer = 0;
    this.cost = 0;
  }

  append(text) {
    this.text += text;
    this.fresh += text;
    this.timer ||= setTimeout(() => this.draw(), Math.max(SHORTEST_WAIT, SHARE * this.cost));
  }

  // Nothing will follow.
  end() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (DEFINITION.test(this.text)) this.startAgain();
    this.openCode = null;
    this.drawTail(true);
    this.drawn();
  }

  // The address of a link may stand behind it.
  startAgain() {
    this.target.replaceChildren();
    Object.assign(this, {tail: "", fresh: this.text, live: [], headings: {}});
  }

  draw() {
    this.timer = 0;
    const start = performance.now();
    if (!this.growCode()) this.drawTail(false);
    this.cost = performance.now() - start;
    this.drawn();
  }

  // True: the new text belongs to a code block that is still open, and is in it.
  growCode() {
    if (!this.openCode) return false;
    const {fence, text} = this.openCode;
    const lastLine = this.tail.slice(this.tail.lastIndexOf("\n") + 1);
    if (this.fresh.includes("\r") || (lastLine + this.fresh).includes(fence)) return false;
    this.tail += this.fresh;
    text.appendData(this.fresh);
    this.fresh = "";
    return true;
  }

  drawTail(whole) {
    this.tail = normalised(this.tail + this.fresh);
    this.fresh = "";
    try {
      this.drawBlocks(whole);
    } catch {
      this.drawPlain();   // marked has come to the end of the stack: thousands of quotations in each other
    }
  }

  drawBlocks(whole) {
    const tokens = blocks(this.tail);
    if (!tokens) return this.drawPlain();
    const settled = whole ? tokens.length : settledCount(tokens);
    const raw = tokens.slice(0, settled).reduce((length, token) => length + token.raw.length, 0);
    for (const node of this.live) node.remove();
    this.live = [];
    if (settled) this.target.append(render(withLinks(tokens, 0, settled), this.headings, true));
    this.tail = this.tail.slice(raw);
    if (settled < tokens.length) this.drawLive(withLinks(tokens, settled));
  }

  drawLive(tokens) {
    const fragment = render(tokens, {...this.headings}, false);
    this.live = [...fragment.childNodes];
    this.target.append(fragment);
    this.openCode = this.tail.endsWith(tokens.at(-1).raw) ? openCode(tokens.at(-1), this.live.at(-1)) : null;
  }

  // The tail as it is written, until it can be drawn.
  drawPlain() {
    for (const node of this.live) node.remove();
    this.live = [make("div", {class: "plain-text"}, this.tail)];
    this.openCode = null;
    this.target.append(...this.live);
  }
}

// marked keeps the definitions of links in a property of the list.
const withLinks = (tokens, begin, end) => Object.assign(tokens.slice(begin, end), {links: tokens.links});

// The blocks before the last, if the last has a whole line: nothing that follows changes them.
function settledCount(tokens) {
  let last = tokens.length - 1;
  while (last >= 0 && tokens[last].type === "space") --last;
  return last > 0 && tokens[last].raw.includes("\n") ? last : 0;
}

// A fenced block at the top level whose end has not come. Its colours are drawn at its end.
function openCode(token, node) {
  const fence = token?.type === "code" && token.raw.match(/^(`{3,}|~{3,})[^\n]*\n/)?.[1];
  if (!fence || token.raw.trimEnd().slice(fence.length).includes("\n" + fence)) return null;
  const code = node.querySelector("code");
  const text = document.createTextNode(restored(token.raw.slice(token.raw.indexOf("\n") + 1)));
  code.replaceChildren(text);
  return {fence, text};
}

// Text that is whole.
export function drawMarkdown(target, text) {
  const stream = new MarkdownStream(target);
  stream.fresh = stream.text = text;
  stream.end();
}
