// Foreign HTML, made safe by DOMPurify: a short list of elements and attributes is all that passes.
export const LINK = /^(https?:|mailto:)/i;

const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "input", "blockquote", "pre", "code", "table",
    "thead", "tbody", "tr", "th", "td", "del", "ins", "em", "strong", "b", "i", "u", "s", "a", "sub", "sup", "kbd", "mark", "small", "q", "span"],
  ALLOWED_ATTR: ["href", "title", "class", "start", "align", "type", "checked", "disabled"],
  ALLOWED_URI_REGEXP: LINK, ADD_URI_SAFE_ATTR: ["align", "start", "type", "checked", "disabled"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};

let purify = null;

export async function loadPurify() {
  await import("./library/purify.js");
  purify = self.DOMPurify;
}

// A fragment of an answer's elements.
export const purified = html => purify.sanitize(html, ALLOWED);

// HTML that only has <span class>, as the highlighter makes it.
export const spans = html => purify.sanitize(html, {ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true});
