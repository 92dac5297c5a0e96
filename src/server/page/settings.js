// What a reader has set, kept in the browser, and presets: named copies of the part that shapes answers.

const KEY = "moesaic.settings", PRESETS = "moesaic.presets", API_KEY = "moesaic.key";

// What a preset holds. Empty: the server's own default.
export const SHAPING = ["system", "effort", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                        "repetition_penalty", "seed", "max_tokens", "stop", "tools", "schema", "other"];
const DEFAULTS = {...Object.fromEntries(SHAPING.map(name => [name, ""])), effort: "medium", theme: "auto", preset: "", sendByEnter: true};

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // No room or not allowed: the settings hold until the page is left.
  }
}

export const settings = {...DEFAULTS, ...read(KEY, {})};
export const presets = read(PRESETS, {});    // name: {system, effort, ...}
const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

export function change(values) {
  Object.assign(settings, values);
  write(KEY, settings);
  for (const listener of listeners) listener(settings);
}

export function choosePreset(name) {
  const preset = presets[name] ?? {};
  change({...Object.fromEntries(SHAPING.map(field => [field, preset[field] ?? DEFAULTS[field]])), preset: name in presets ? name : ""});
}

export function savePreset(name) {
  presets[name] = Object.fromEntries(SHAPING.map(field => [field, settings[field]]));
  write(PRESETS, presets);
  change({preset: name});
}

export function deletePreset(name) {
  delete presets[name];
  write(PRESETS, presets);
  change({preset: ""});
}

// The key leaves with the tab, and no export has it.
export const apiKey = () => sessionStorage.getItem(API_KEY) ?? "";

export function setApiKey(key) {
  sessionStorage.setItem(API_KEY, key);
  for (const listener of listeners) listener(settings);
}
