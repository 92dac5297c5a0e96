// A system prompt for one conversation, in place of the one of the settings.
import {byId} from "./dom.js";
import {settings} from "./settings.js";

export const instructionsOf = conversation => conversation.system?.trim() ? conversation.system : settings.system;

// set(text): it is to be kept.
export function editInstructions(conversation, set) {
  const dialog = byId("instructions"), area = byId("instructions-text");
  area.value = conversation.system ?? "";
  area.placeholder = settings.system?.trim() || "You are a helpful assistant.";
  dialog.firstElementChild.onsubmit = event => event.submitter.value === "save" && set(area.value.trim());
  dialog.showModal();
  area.focus();
}
