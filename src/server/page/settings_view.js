// The dialog of settings.
import {byId, growing, make} from "./dom.js";
import {parseSetting} from "./request.js";
import {apiKey, change, choosePreset, deletePreset, onChange, presets, savePreset, setApiKey, settings} from "./settings.js";
import {KEYS} from "./shortcuts.js";

const inputs = new Map();   // name of a setting: its element
let fits = [];              // for the growing textareas
const isTypedIn = element => document.activeElement === element && element.localName !== "select";

function keep(name, element) {
  inputs.set(name, element);
  element.addEventListener("change", () => change({[name]: element.value}));
  return element;
}

function labelled(text, element, hint) {
  return make("label", {class: "field"}, make("span", {class: "field-name"}, text), element, hint && make("span", {class: "soft"}, hint));
}

function number(name, text, limits) {
  return labelled(text, keep(name, make("input", {type: "number", placeholder: "default", ...limits})));
}

function area(name, text, hint, {json = false, ...attributes} = {}) {
  const element = keep(name, make("textarea", {rows: 2, dir: json ? "ltr" : "auto", spellcheck: json ? "false" : "true", class: json ? "code-area" : "", ...attributes}));
  fits.push(growing(element));
  const field = labelled(text, element, hint);
  if (json) {
    const wrong = make("span", {class: "wrong", role: "alert"});
    element.addEventListener("change", () => showWrong(text, element, wrong));
    field.append(wrong);
  }
  return field;
}

function showWrong(name, element, wrong) {
  wrong.textContent = "";
  try {
    parseSetting(name, element.value);
  } catch (error) {
    wrong.textContent = error.message;
  }
  element.setAttribute("aria-invalid", String(wrong.textContent !== ""));
}

function group(title, open, ...fields) {
  return make("details", {class: "group", open}, make("summary", {}, title), make("div", {class: "fields"}, ...fields));
}

function presetBar() {
  const name = make("input", {placeholder: "name of a preset", "aria-label": "Name of a preset", maxlength: 60, id: "preset-name"});
  const save = make("button", {type: "button", class: "plain", id: "preset-save", onclick: () => name.value.trim() && savePreset(name.value.trim())}, "Save as preset");
  const remove = make("button", {type: "button", class: "plain", onclick: () => deletePreset(name.value.trim())}, "Delete");
  onChange(() => name.value = !isTypedIn(name) && settings.preset || name.value);
  name.value = settings.preset;
  return make("div", {class: "wide row"}, name, save, remove);
}

function instructions() {
  return group("Instructions", true,
    area("system", "System prompt", "Sent before every conversation, as the developer's message.", {class: "wide"}), presetBar());
}

function sampling() {
  return group("Sampling", false,
    number("temperature", "Temperature", {min: 0, max: 2, step: 0.1}), number("top_p", "Top p", {min: 0, max: 1, step: 0.05}),
    number("top_k", "Top k", {min: 0, step: 1}), number("min_p", "Min p", {min: 0, max: 1, step: 0.01}),
    number("presence_penalty", "Presence penalty", {min: -2, max: 2, step: 0.1}),
    number("frequency_penalty", "Frequency penalty", {min: -2, max: 2, step: 0.1}),
    number("repetition_penalty", "Repetition penalty", {min: 0, max: 2, step: 0.05}), number("seed", "Seed", {step: 1}),
    number("max_tokens", "Longest answer, tokens", {min: 1, step: 1}), area("stop", "Stop strings", "One in each line."));
}

function output() {
  return group("Tools and output", false,
    area("tools", "Tools", "A JSON array of functions, as the API takes them. You are asked for their results.", {json: true}),
    area("schema", "JSON schema", "Answers follow it.", {json: true}),
    area("other", "Other fields", "A JSON object, added to each request.", {json: true}));
}

function appearance() {
  const theme = keep("theme", make("select", {}, ...["auto", "light", "dark"].map(name => make("option", {value: name}, name))));
  const enter = make("input", {type: "checkbox", id: "send-by-enter"});
  onChange(() => enter.checked = settings.sendByEnter);
  enter.checked = settings.sendByEnter;
  enter.addEventListener("change", () => change({sendByEnter: enter.checked}));
  const key = make("input", {type: "password", autocomplete: "off", id: "api-key"});
  key.value = apiKey();
  key.addEventListener("change", () => {
    key.setCustomValidity(setApiKey(key.value) ? "" : "This key has characters that no API key can have");
    key.reportValidity();
  });
  return group("This browser", false, labelled("Colours", theme),
    labelled("API key", key, "Forgotten when this tab is closed."),
    make("label", {class: "field check"}, enter, "Enter sends, Shift+Enter breaks the line"));
}

function conversations(actions) {
  const file = make("input", {type: "file", accept: ".json,application/json", hidden: true, id: "import-file"});
  file.addEventListener("change", () => {
    if (file.files.length) actions.importFile(file.files[0]);
    file.value = "";
  });
  return group("Conversations", false, make("div", {class: "wide row"},
    make("button", {type: "button", class: "plain", id: "export-all", onclick: actions.exportAll}, "Export all"),
    make("button", {type: "button", class: "plain", onclick: () => file.click()}, "Import"), file,
    make("button", {type: "button", class: "plain danger", id: "delete-all", onclick: actions.deleteAll}, "Delete all")),
  make("p", {class: "soft wide"}, "Conversations are kept in this browser and nowhere else."));
}

function keyboard() {
  const rows = KEYS.map(([keys, what]) => make("div", {class: "key-row"}, make("kbd", {}, keys), make("span", {}, what)));
  return group("Keyboard", false, make("div", {class: "wide"}, ...rows));
}

function show() {
  for (const [name, element] of inputs) if (!isTypedIn(element)) element.value = settings[name];
}

// The choice of a preset stands beside the message.
function showPresets() {
  const names = Object.keys(presets).sort((a, b) => a.localeCompare(b));
  byId("preset").replaceChildren(make("option", {value: ""}, "none"), ...names.map(name => make("option", {value: name}, name)));
  byId("preset").value = settings.preset;
  byId("preset").closest("label").hidden = !names.length;
}

export function toggleSettings() {
  const dialog = byId("settings");
  if (dialog.open) return dialog.close();
  dialog.showModal();
  for (const fit of fits) fit();
}

// actions: {exportAll(), importFile(file), deleteAll()}
export function startSettings(actions) {
  byId("settings-body").append(instructions(), sampling(), output(), appearance(), conversations(actions), keyboard());
  for (const details of byId("settings-body").children) details.addEventListener("toggle", () => fits.forEach(fit => fit()));
  keep("effort", byId("effort"));
  byId("preset").addEventListener("change", () => choosePreset(byId("preset").value));
  byId("open-settings").addEventListener("click", toggleSettings);
  byId("settings").addEventListener("click", event => event.target === byId("settings") && byId("settings").close());
  const refresh = () => {
    show();
    showPresets();
    if (settings.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = settings.theme;
  };
  onChange(refresh);
  refresh();
}
