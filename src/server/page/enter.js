// Which key sends, wherever a text is written.
import {settings} from "./settings.js";

// Keyboards on glass have no Shift+Enter: there, Enter breaks the line and the button sends.
const onGlass = matchMedia("(hover: none) and (pointer: coarse)");

const byEnter = () => settings.sendByEnter && !onGlass.matches;

// True for a key of an input method. Safari ends the composition before the key that does so, but gives it the code 229.
export const composes = event => event.isComposing || event.keyCode === 229;

export function sends(event) {
  const plain = !event.shiftKey && !event.altKey && !composes(event);
  return event.key === "Enter" && plain && (byEnter() || event.ctrlKey || event.metaKey);
}

// For the tooltip of the button that does the same.
export const sendKey = () => byEnter() ? "Enter" : "Ctrl+Enter";
