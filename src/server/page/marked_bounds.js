// Bounds on what marked may cost. A model that runs away writes thousands of equal tokens: for some of them marked's time grows
// with the square of their number, for others its stack.

// The text of a block is read in pieces of at most so many characters, and so many * and _.
const LONGEST_PIECE = 4000;
const MARKS = /^(?:[^*_]*[*_]){200}/;
const DEEP = /^(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])[ \t](?:\[[ xX]\][ \t])?)){50}/;

// A piece ends behind a word where it can.
function pieceOf(text) {
  if (text.length <= LONGEST_PIECE && !MARKS.test(text)) return text;
  const longest = text.slice(0, LONGEST_PIECE), piece = longest.match(MARKS)?.[0] ?? longest;
  return piece.slice(0, piece.search(/\s\S*$/) + 1) || piece;
}

function readInPieces({prototype}) {
  const {inlineTokens} = prototype;
  prototype.inlineTokens = function (text, tokens = []) {
    for (let rest = text; rest;) {
      const piece = pieceOf(rest);
      inlineTokens.call(this, piece, tokens);
      rest = rest.slice(piece.length);
    }
    return tokens;
  };
}

// A line that has a | may be a table's head. marked's rules try each | of it; the first one is enough.
function tryOneBar(rules) {
  const line = String.raw`[^\n ].*\|.*`, sameLine = String.raw`[^\n ][^\n|]*\|.*`;
  for (const name of ["table", "paragraph"]) rules[name] = new RegExp(rules[name].source.replace(line, sameLine));
}

export function boundMarked({Lexer}) {
  readInPieces(Lexer);
  tryOneBar(Lexer.rules.block.gfm);
}

// For marked's tokenizer. A line that begins with that many quotations and lists in each other is text; false: marked's own rule.
export const unlessDeep = src => DEEP.test(src) ? undefined : false;
