// Small helpers for elements.

export const byId = id => document.getElementById(id);

// make("button", {class: "plain", type: "button", onclick: f}, "text", child): attributes, listeners and children.
// Text is always text, never HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child != null));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

// One of the symbols of index.html.
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg"), use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", "#icon-" + name);
  svg.append(use);
  return svg;
}

// A button that shows an icon alone; its label is its tooltip too.
export function iconButton(name, label, onclick) {
  return make("button", {type: "button", class: "round small", "aria-label": label, title: label, onclick}, icon(name));
}

export const prefersStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// A textarea as high as its text; the style sheet has the maximum.
export function growing(textarea) {
  const fit = () => {
    textarea.style.height = "auto";
    textarea.style.height = textarea.scrollHeight + textarea.offsetHeight - textarea.clientHeight + "px";
  };
  textarea.addEventListener("input", fit);
  return fit;
}
