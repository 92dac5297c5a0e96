// Conversations to files and back.
import {newId, path, titleOf} from "./conversation.js";
import {textWithFiles} from "./attachments.js";
import {make} from "./dom.js";

const FORMAT = "moesaic conversations", VERSION = 1, MOST_MESSAGES = 10000;
const ROLES = ["user", "assistant", "tool"];

export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], {type}));
  const link = make("a", {href: address, download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export const toJson = conversations => JSON.stringify({format: FORMAT, version: VERSION, conversations}, null, 1);

const NAMES = {user: "You", assistant: "Answer", tool: "Result"};

// The shown path, to read.
export function toMarkdown(conversation) {
  const parts = path(conversation).map(node => {
    const calls = (node.calls ?? []).map(call => `\n\n\`${call.name}(${call.arguments})\``).join("");
    return `## ${NAMES[node.role]}\n\n${textWithFiles(node)}${calls}\n`;
  });
  return `# ${titleOf(conversation)}\n\n${parts.join("\n")}`;
}

export const fileName = (conversation, ending) => (titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50) || "conversation") + ending;

const isText = value => typeof value === "string";
const textOr = (value, otherwise) => isText(value) ? value : otherwise;
const timeOr = (value, otherwise) => Number.isFinite(value) ? value : otherwise;

function readCalls(calls) {
  if (!Array.isArray(calls)) return {};
  return {calls: calls.map(call => ({id: textOr(call?.id, newId()), name: textOr(call?.name, "?"), arguments: textOr(call?.arguments, "")}))};
}

function readStats(stats) {
  if (typeof stats !== "object" || stats === null) return {};
  return {stats: Object.fromEntries(Object.entries(stats).filter(([, value]) => Number.isFinite(value)))};
}

function readFiles(files) {
  const known = Array.isArray(files) ? files.filter(file => isText(file?.name) && isText(file?.text)).map(({name, text}) => ({name, text})) : [];
  return known.length ? {files: known} : {};
}

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);

// Known fields alone, each of its own type: a file is not trusted. ids: new ones by the file's.
function readNode(id, node, ids) {
  if (!isObject(node) || !ROLES.includes(node.role) || !isText(node.content)) throw new Error("a message without a role or a text");
  const parent = isText(node.parent) ? node.parent : null;
  if (parent !== null && !ids.has(parent)) throw new Error("a message whose predecessor is missing");
  const out = {id: ids.get(id), parent: ids.get(parent) ?? null, time: timeOr(node.time, 0), role: node.role, content: node.content,
               ...readCalls(node.calls), ...readFiles(node.files), ...readStats(node.stats)};
  for (const name of ["reasoning", "error", "finish", "refused", "callId", "name"]) if (isText(node[name])) out[name] = node[name];
  return out;
}

// Every node's parents must end at a root.
function checkTree(nodes) {
  const whole = new Set();
  for (const start of Object.values(nodes)) {
    const seen = new Set();
    for (let node = start; node && !whole.has(node.id); node = nodes[node.parent]) {
      if (seen.has(node.id)) throw new Error("messages in a circle");
      seen.add(node.id);
    }
    for (const id of seen) whole.add(id);
  }
}

function readConversation(given) {
  if (!isObject(given) || !isObject(given.nodes ?? {})) throw new Error("no object with messages");
  const entries = Object.entries(given.nodes ?? {});
  if (entries.length > MOST_MESSAGES) throw new Error(`too many messages (at most ${MOST_MESSAGES})`);
  const ids = new Map(entries.map(([id]) => [id, newId()]));
  const nodes = Object.fromEntries(entries.map(([id, node]) => [ids.get(id), readNode(id, node, ids)]));
  checkTree(nodes);
  const now = Date.now();
  return {id: newId(), title: textOr(given.title, "").slice(0, 200), created: timeOr(given.created, now), changed: timeOr(given.changed, now),
          pinned: given.pinned === true, leaf: ids.get(given.leaf) ?? ids.get(entries.at(-1)?.[0]) ?? null,
          ...(isText(given.system) ? {system: given.system} : {}), ...(ids.has(given.from) ? {from: ids.get(given.from)} : {}), nodes};
}

// New conversations, beside those that are there. Throws an Error with a line to show.
export function fromJson(text) {
  let file = null;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file has no conversations of moesaic");
  if (file.version !== VERSION) throw new Error(`This file is of version ${file.version}; this page reads version ${VERSION}`);
  return file.conversations.map((given, i) => {
    try {
      return readConversation(given);
    } catch (error) {
      throw new Error(`Conversation ${i + 1} cannot be read: ${error.message}`);
    }
  });
}
