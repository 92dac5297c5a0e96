// A reader's settings, kept in the browser, and presets: named copies of the part that shapes answers.
import {keep, kept} from "./browser_storage.js";

const KEY = "moesaic.settings", PRESETS = "moesaic.presets", API_KEY = "moesaic.key";

// The fields of a preset. Empty: the server's own default.
export const SHAPING = ["system", "effort", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                        "repetition_penalty", "seed", "max_tokens", "stop", "tools", "schema", "other"];
const DEFAULTS = {...Object.fromEntries(SHAPING.map(name => [name, ""])), effort: "medium", theme: "auto", preset: "", sendByEnter: true};

// An object, whatever is kept there.
function read(key) {
  try {
    return Object(JSON.parse(kept("localStorage", key)));
  } catch {
    return {};
  }
}

// Known fields alone, each of its own type: another version of the page may have kept them.
function typed(values) {
  return Object.fromEntries(Object.entries(Object(values)).filter(([name, value]) => Object.hasOwn(DEFAULTS, name) && typeof value === typeof DEFAULTS[name]));
}

const write = (key, value) => keep("localStorage", key, JSON.stringify(value));

export const settings = {...DEFAULTS, ...typed(read(KEY))};
const readPresets = () => Object.fromEntries(Object.entries(read(PRESETS)).map(([name, preset]) => [name, typed(preset)]));
export let presets = readPresets();   // name: {system, effort, ...}
const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

function tell() {
  for (const listener of listeners) listener(settings);
}

// Another tab may have changed the others.
export function change(values) {
  Object.assign(settings, typed(read(KEY)), values);
  write(KEY, settings);
  tell();
}

// Takes over what another tab has changed.
addEventListener("storage", ({key}) => {
  if (key === KEY) Object.assign(settings, typed(read(KEY)));
  else if (key === PRESETS) presets = readPresets();
  else return;
  tell();
});

export function choosePreset(name) {
  const preset = presets[name] ?? {};
  change({...Object.fromEntries(SHAPING.map(field => [field, preset[field] ?? DEFAULTS[field]])), preset: name in presets ? name : ""});
}

// Another tab may have changed the others.
export function savePreset(name) {
  presets = readPresets();
  presets[name] = Object.fromEntries(SHAPING.map(field => [field, settings[field]]));
  write(PRESETS, presets);
  change({preset: name});
}

export function deletePreset(name) {
  presets = readPresets();
  delete presets[name];
  write(PRESETS, presets);
  change({preset: ""});
}

// The key leaves with the tab, and no export has it.
export const apiKey = () => kept("sessionStorage", API_KEY) ?? "";

// False: no header can carry it.
export function setApiKey(key) {
  if (/[^\x20-\xFF]/.test(key)) return false;
  keep("sessionStorage", API_KEY, key);
  tell();
  return true;
}
