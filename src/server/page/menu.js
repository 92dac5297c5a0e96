// A small menu below a button: arrow keys move, Escape and a click elsewhere close.
import {make} from "./dom.js";

let open = null;

export function closeMenu(focus = false) {
  if (!open) return;
  open.frame.remove();
  open.button.setAttribute("aria-expanded", "false");
  if (focus) open.button.focus();
  open = null;
}

function place(menu, button) {
  const at = button.getBoundingClientRect(), size = menu.getBoundingClientRect();
  menu.style.left = Math.max(8, Math.min(at.right - size.width, innerWidth - size.width - 8)) + "px";
  menu.style.top = (at.bottom + size.height + 8 > innerHeight ? at.top - size.height - 4 : at.bottom + 4) + "px";
}

function onKey(event) {
  const items = [...event.currentTarget.children], at = items.indexOf(document.activeElement);
  if (event.key === "Escape" || event.key === "Tab") closeMenu(true);
  else if (event.key === "ArrowDown") items[(at + 1) % items.length].focus();
  else if (event.key === "ArrowUp") items[(at + items.length - 1) % items.length].focus();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

// items: [[label, action]]
export function openMenu(button, items) {
  const again = open?.button === button;
  closeMenu();
  if (again) return;
  const menu = make("div", {class: "menu", role: "menu", onkeydown: onKey});
  for (const [label, action] of items) {
    const choose = () => { closeMenu(true); action(); };
    menu.append(make("button", {type: "button", role: "menuitem", tabindex: "-1", onclick: choose}, label));
  }
  // Screen readers expect everything on a page to stand in a landmark.
  const frame = make("div", {role: "region", "aria-label": button.getAttribute("aria-label")}, menu);
  document.body.append(frame);
  open = {frame, button};
  button.setAttribute("aria-expanded", "true");
  place(menu, button);
  menu.firstElementChild.focus();
}

document.addEventListener("pointerdown", event => {
  if (open && !open.frame.contains(event.target) && !open.button.contains(event.target)) closeMenu();
});
