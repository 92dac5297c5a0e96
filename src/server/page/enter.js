// Which key sends, wherever a text is written.
import {settings} from "./settings.js";

// Keyboards on glass have no Shift+Enter: there, Enter breaks the line and the button sends.
const onGlass = matchMedia("(hover: none) and (pointer: coarse)");

const byEnter = () => settings.sendByEnter && !onGlass.matches;

export function sends(event) {
  const plain = !event.shiftKey && !event.altKey && !event.isComposing;
  return event.key === "Enter" && plain && (byEnter() || event.ctrlKey || event.metaKey);
}

// For the tooltip of the button that does the same.
export const sendKey = () => byEnter() ? "Enter" : "Ctrl+Enter";
