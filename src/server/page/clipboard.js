// Copying text, also where the page came by plain HTTP from another machine: browsers offer navigator.clipboard only to
// pages that came by HTTPS or from this machine.
import {icon, make} from "./dom.js";

function copyBySelection(text) {
  const area = make("textarea", {class: "unseen", "aria-hidden": "true"});
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// textOf(): what to copy. The button shows for a moment that it has worked.
export function copyButton(label, textOf) {
  const button = make("button", {type: "button", class: "round small", "aria-label": label, title: label}, icon("copy"));
  button.addEventListener("click", async () => {
    if (!await copy(textOf())) return;
    button.replaceChildren(icon("done"));
    button.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}
