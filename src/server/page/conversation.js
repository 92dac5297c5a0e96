// A conversation is a tree of messages. Editing a message or asking again adds a sibling; what is shown, and sent, is the
// path from the root to `leaf`.
//
//   conversation: {id, title, created, changed, pinned, leaf, nodes: {id: node},
//                  system (instructions of its own), from (id of the first message that is sent)}
//   node: {id, parent, time, role, content, ...}
//     of an assistant: reasoning, calls: [{id, name, arguments}], stats, error (why it ended early), finish
//     of a tool:       callId, name
//     of a user:       files: [{name, text}], refused (why the server did not take it; such a message is not sent again),
//                      tooLong (it was refused for that)

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, "0")).join("");

export function newConversation() {
  return {id: newId(), title: "", created: Date.now(), changed: Date.now(), pinned: false, leaf: null, nodes: {}};
}

export function add(conversation, node, parent = conversation.leaf) {
  const whole = {id: newId(), parent, time: Date.now(), content: "", ...node};
  conversation.nodes[whole.id] = whole;
  conversation.leaf = whole.id;
  return whole;
}

// The nodes from the root to `leaf`, or to another one.
export function path(conversation, leaf = conversation.leaf) {
  const nodes = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) nodes.unshift(node);
  return nodes;
}

// The part of the path that is sent.
export function sent(conversation) {
  const nodes = path(conversation);
  return nodes.slice(Math.max(0, nodes.findIndex(node => node.id === conversation.from)));
}

// Half of the turns before the last, the older ones, are not sent any more. False: there is none but the last.
export function leaveOldestOut(conversation) {
  const turns = sent(conversation).filter(node => node.role === "user" && !node.refused);
  if (turns.length < 2) return false;
  conversation.from = turns[Math.ceil((turns.length - 1) / 2)].id;
  return true;
}

export function children(conversation, parent) {
  return Object.values(conversation.nodes).filter(node => node.parent === parent).sort((a, b) => a.time - b.time);
}

export const siblings = (conversation, node) => children(conversation, node.parent);

// Shows this node and, below it, what came last.
export function choose(conversation, node) {
  let last = node;
  for (let below = children(conversation, last.id); below.length; below = children(conversation, last.id)) last = below.at(-1);
  conversation.leaf = last.id;
}

// Removes a node with all below it, and returns them.
export function remove(conversation, node) {
  const others = siblings(conversation, node).filter(other => other !== node);
  const below = [node];
  for (let i = 0; i < below.length; ++i) below.push(...children(conversation, below[i].id));
  for (const gone of below) delete conversation.nodes[gone.id];
  if (others.length) choose(conversation, others.at(-1));
  else conversation.leaf = node.parent;
  return below;
}

// Makes an object that others hold equal to another one.
function become(mine, theirs) {
  for (const name of Object.keys(mine)) if (!(name in theirs)) delete mine[name];
  Object.assign(mine, theirs);
}

const isDrawnAs = (a, b) => a.content === b.content && a.reasoning === b.reasoning && JSON.stringify(a.calls) === JSON.stringify(b.calls);

// Takes over what another tab has saved: all but `own`, an answer that grows here. busy: nothing that is here goes, and what
// is shown stays, unless the other tab went on behind it. Returns the nodes whose text has changed.
export function merge(conversation, saved, own, busy) {
  const {nodes, leaf} = conversation, changed = [];
  for (const node of Object.values(saved.nodes)) {
    if (node.id === own?.id) continue;
    const mine = nodes[node.id] ??= {...node};
    if (!isDrawnAs(mine, node)) changed.push(mine);
    become(mine, node);
  }
  if (!busy) for (const id of Object.keys(nodes)) if (!(id in saved.nodes)) delete nodes[id];
  become(conversation, {...saved, nodes});
  if (busy && !path(conversation).some(node => node.id === leaf)) conversation.leaf = leaf;
  return changed;
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = path(conversation).find(node => node.role === "user");
  const line = first?.content.trim().split("\n", 1)[0] || (first?.files?.[0].name ?? "");
  return line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line || "New conversation";
}

// Lower case, for searching.
export function textOf(conversation) {
  return [titleOf(conversation), ...Object.values(conversation.nodes).map(node => node.content)].join("\n").toLowerCase();
}
