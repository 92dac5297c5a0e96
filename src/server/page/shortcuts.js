// The keyboard.
import {composes} from "./enter.js";

export const KEYS = [
  ["Enter", "send"], ["Shift+Enter", "break the line"], ["Esc", "stop the answer"], ["↑ in an empty message", "edit your last message"],
  ["Alt+N", "new conversation"], ["Ctrl+K", "search conversations"], ["Alt+S", "settings"], ["Alt+C", "copy the last answer"],
  ["Alt+R", "ask again"], ["Alt+M", "to the message"],
];

// Alt is Option on a Mac, and writes letters: ń, ś.
const onMac = /Mac|iPad|iPhone/.test(navigator.platform);
const writes = event => onMac && event.altKey && event.target.matches("input, textarea");

// actions: {create, search, settings, copyLast, again, focus, stop}
export function startShortcuts(actions) {
  const alt = {n: actions.create, s: actions.settings, c: actions.copyLast, r: actions.again, m: actions.focus};
  document.addEventListener("keydown", event => {
    if (composes(event) || writes(event)) return;
    // With Alt some keyboards make another letter of the key.
    const key = event.altKey ? event.code.replace(/^Key/, "").toLowerCase() : event.key.toLowerCase();
    const action = event.altKey && !event.ctrlKey ? alt[key]
                 : (event.ctrlKey || event.metaKey) && !event.altKey && key === "k" ? actions.search
                 : event.key === "Escape" && !document.querySelector("dialog[open], .menu") ? actions.stop : null;
    if (!action) return;
    if (event.key !== "Escape") event.preventDefault();
    action();
  });
}
