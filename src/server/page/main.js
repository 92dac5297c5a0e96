// The page: one conversation at a time, the list of the others, and what a reader does with them.
import {Answer, endedElsewhere, isAnsweredElsewhere, runningIn} from "./answering.js";
import {copy} from "./clipboard.js";
import {Composer, notice} from "./composer.js";
import * as tree from "./conversation.js";
import {byId} from "./dom.js";
import {editInstructions} from "./instructions.js";
import {ListView} from "./list_view.js";
import {loadMarkdown} from "./markdown.js";
import {openMenu} from "./menu.js";
import {server, showContext, startServerView} from "./server_view.js";
import {startSettings, toggleSettings} from "./settings_view.js";
import {startShortcuts} from "./shortcuts.js";
import {startSide} from "./side.js";
import * as store from "./store.js";
import {ThreadView} from "./thread_view.js";
import {toast} from "./toast.js";
import * as transfer from "./transfer.js";

let current = tree.newConversation();

const list = new ListView({open, rename: (id, title) => change(id, {title}), menu: menuOf});
const thread = new ThreadView({edit, again, go, erase, result, carryOn, leaveOut, sendAll});
const composer = new Composer({send, stop: () => runningIn(current.id)?.stop(), editLast});
const side = startSide();

async function drawList() {
  list.show(await store.loadAll(), current.id);
}

// Tokens of the last request of this path and its answer.
function contextUsed() {
  const last = tree.path(current).findLast(node => node.stats);
  return last ? last.stats.prompt + last.stats.tokens : 0;
}

function draw() {
  thread.show(current);
  byId("title").textContent = tree.titleOf(current);
  document.title = current.leaf ? `${tree.titleOf(current)} · moesaic` : "moesaic";
  composer.setBusy(!!runningIn(current.id));
  showContext(contextUsed());
}

async function keep(conversation) {
  try {
    await store.save(conversation);
  } catch (error) {
    notice(error.message);
  }
  await drawList();
}

const hashOf = conversation => conversation.leaf ? "#" + conversation.id : "";

// The address is that of the conversation; ?q= has been read.
function show(conversation) {
  current = conversation;
  history.replaceState(null, "", location.pathname + hashOf(conversation));
  notice("");
  draw();
  const answer = runningIn(current.id);
  if (answer) thread.attach(answer);
  thread.toEnd(false);
}

// Shows what the reader goes to. The browser's Back leads to what was shown before.
async function visit(conversation) {
  if (location.hash !== hashOf(conversation)) history.pushState(null, "", location.pathname + hashOf(conversation));
  side.close();
  show(conversation);
  composer.focus();
  await drawList();
}

// A conversation as it is by now: answered, shown or kept; undefined if it has been deleted.
async function latest(id) {
  return runningIn(id)?.conversation ?? (id === current.id ? current : await store.load(id));
}

async function change(id, values) {
  const conversation = await latest(id);
  if (!conversation) return drawList();
  Object.assign(conversation, values);
  if (conversation === current) draw();
  if (conversation.leaf) await keep(conversation);
}

// unsent: its last message is to be sent now.
async function load(id) {
  const elsewhere = await isAnsweredElsewhere(id), conversation = await latest(id);
  if (elsewhere) endedElsewhere(id).then(() => takeBack(id));
  return {conversation, unsent: !!conversation && !elsewhere && mend(conversation)};
}

// The other tab has ended its answer, or was closed in the middle of it.
async function takeBack(id) {
  await store.refresh(id);
  if (id !== current.id || runningIn(id) || !await store.load(id)) return;
  if (mend(current)) answer();
  else draw();
}

async function open(id) {
  const {conversation = tree.newConversation(), unsent} = await load(id);
  const visited = visit(conversation);
  if (unsent) answer();
  await visited;
}

async function create() {
  await visit(tree.newConversation());
}

// Answers the last message of the shown path, or goes on with that answer.
async function answer(continued = null) {
  const conversation = current, answer = new Answer(conversation, continued);
  show(conversation);
  byId("said").textContent = "The answer is being written";
  const saved = keep(conversation);
  await answer.run(server);
  await saved;
  await ended(conversation, answer);
}

async function ended(conversation, answer) {
  if (current === conversation) {
    const view = thread.view(answer.node);
    view?.finish(thread.place(answer.node));
    draw();
    thread.follow();
  }
  if (answer.dropped) return;
  await keep(conversation);
  byId("said").textContent = answer.asked.at(-1)?.refused ?? answer.node.error ?? (answer.node.content || "The answer has ended");
}

function carryOn(node) {
  if (!runningIn(current.id) && current.leaf === node.id) answer(node);
}

// The refused message is sent with what is left of the conversation.
function leaveOut(node) {
  if (runningIn(current.id)) return;
  delete node.refused;
  delete node.tooLong;
  current.leaf = node.id;
  tree.leaveOldestOut(current);
  answer();
}

function sendAll() {
  delete current.from;
  draw();
  keep(current);
}

function instructions(conversation) {
  editInstructions(conversation, text => change(conversation.id, {system: text}));
}

const withFiles = files => files?.length ? {files} : {};

function send(text, files) {
  if (runningIn(current.id)) return false;
  tree.add(current, {role: "user", content: text, ...withFiles(files)});
  answer();
  return true;
}

// A user's message becomes another version, which is answered; an answer is changed in place.
function edit(node, text) {
  if (runningIn(current.id)) return;
  if (node.role === "user") {
    tree.add(current, {role: "user", content: text, ...withFiles(node.files)}, node.parent);
    answer();
    return;
  }
  node.content = text;
  thread.redraw(node);
  keep(current);
}

// Another answer to the same message.
function again(node) {
  if (runningIn(current.id)) return;
  delete node.refused;
  delete node.tooLong;
  current.leaf = node.role === "user" ? node.id : node.parent;
  answer();
}

function go(node, step) {
  if (runningIn(current.id)) return;
  const all = tree.siblings(current, node);
  const to = all[all.indexOf(node) + step];
  if (!to) return;
  tree.choose(current, to);
  draw();
  const arrows = thread.view(to).root.querySelectorAll(".branches button:not(:disabled)");
  (step < 0 ? arrows[0] : arrows[arrows.length - 1])?.focus();
  keep(current);
}

function erase(node) {
  if (runningIn(current.id)) return;
  const {id, leaf} = current, removed = tree.remove(current, node);
  draw();
  keep(current);
  toast("Deleted", "Undo", () => putBack(id, removed, leaf));
}

// Into the conversation as it is by then: what has come since stays, as another version.
async function putBack(id, nodes, leaf) {
  const conversation = await latest(id);
  if (!conversation) return;
  for (const node of nodes) conversation.nodes[node.id] = node;
  if (!runningIn(id)) conversation.leaf = leaf;
  await open(id);
  await keep(conversation);
}

function result(call, text) {
  if (runningIn(current.id)) return;
  tree.add(current, {role: "tool", callId: call.id, name: call.name, content: text});
  const caller = tree.path(current).findLast(node => node.calls);
  const answered = tree.path(current).filter(node => node.role === "tool").map(node => node.callId);
  if (caller.calls.every(({id}) => answered.includes(id))) answer();
  else {
    draw();
    keep(current);
  }
}

function editLast(event) {
  const last = tree.path(current).findLast(node => node.role === "user");
  if (!last) return;
  event.preventDefault();
  thread.view(last).edit();
}

async function bringBack(conversations) {
  for (const {id} of conversations) if (runningIn(id)) runningIn(id).dropped = false;
  try {
    for (const conversation of conversations) await store.save(conversation);
  } catch (error) {
    return toast(error.message);
  }
  await open(conversations[0].id);
}

async function remove(conversations) {
  try {
    for (const {id} of conversations) {
      runningIn(id)?.drop();
      await store.erase(id);
    }
  } catch (error) {
    toast(error.message);
    return drawList();
  }
  if (conversations.some(({id}) => id === current.id)) await create();
  else await drawList();
  const what = conversations.length === 1 ? "Conversation deleted" : `${conversations.length} conversations deleted`;
  toast(what, "Undo", () => bringBack(conversations));
}

function editTitle(conversation) {
  side.open();
  list.editTitle(conversation);
}

const exportMarkdown = conversation => transfer.download(transfer.fileName(conversation, ".md"), "text/markdown", transfer.toMarkdown(conversation));
const exportJson = conversation => transfer.download(transfer.fileName(conversation, ".json"), "application/json", transfer.toJson([conversation]));

// While the menu is open, another tab may go on with the conversation.
function menuOf({id, leaf, system, pinned}) {
  const by = act => async () => {
    const conversation = await latest(id);
    if (conversation) act(conversation);
  };
  const own = [system ? "Instructions (own)" : "Instructions", by(instructions)];
  if (!leaf) return [own];
  return [["Rename", by(editTitle)], [pinned ? "Unpin" : "Pin", () => change(id, {pinned: !pinned})], own,
          ["Export as Markdown", by(exportMarkdown)], ["Export as JSON", by(exportJson)], ["Delete", by(conversation => remove([conversation]))]];
}

async function exportAll() {
  transfer.download("conversations.json", "application/json", transfer.toJson(await store.loadAll()));
}

async function importFile(file) {
  try {
    const conversations = transfer.fromJson(await file.text());
    for (const conversation of conversations) await store.save(conversation);
    await drawList();
    toast(`${conversations.length} imported`);
  } catch (error) {
    toast(error.message);
  }
}

async function deleteAll() {
  const all = await store.loadAll();
  if (all.length) await remove(all);
}

function copyLast() {
  const last = tree.path(current).findLast(node => node.role === "assistant");
  if (last) copy(last.content).then(copied => copied && toast("Copied"));
}

function askAgain() {
  const last = tree.path(current).findLast(node => node.role === "assistant" || node.refused);
  if (last) again(last);
}

function search() {
  side.open();
  byId("search").focus();
}

// Another tab has saved a conversation, or erased it (undefined). Returns what is known of it: where it is answered or shown
// here, the tree that is here takes over the rest.
function onOtherTab(id, saved) {
  const answer = runningIn(id), own = answer?.conversation ?? (id === current.id ? current : null);
  drawList();
  if (!saved) answer?.drop();
  else if (own) takeOver(own, saved, answer?.node);
  return saved && (own ?? saved);
}

function takeOver(own, saved, grows) {
  const writes = own === current && !!document.querySelector(".editor, .call textarea:not(:placeholder-shown)");
  const changed = tree.merge(own, saved, grows, !!grows || writes);
  if (own !== current) return;
  for (const node of changed) if (thread.view(node) && !thread.view(node).isEdited()) thread.redraw(node);
  draw();
}

// An answer that a reload has cut off says so.
function mendCut(conversation) {
  const last = conversation.nodes[conversation.leaf];
  if (last?.role === "assistant" && !last.finish && !last.error) last.error = "Cut off when the page was left";
}

// A message that was still waiting for the model when the page was left. True: it is to be sent now.
function takeUnsent(conversation) {
  const last = conversation.nodes[conversation.leaf];
  if (!last?.unsent) return false;
  delete conversation.nodes[last.id];
  conversation.leaf = last.parent;
  return true;
}

// A page that was left in the middle: its last answer says so. True: its last message is to be sent now.
function mend(conversation) {
  if (runningIn(conversation.id)) return false;
  const unsent = takeUnsent(conversation);
  if (!unsent) mendCut(conversation);
  return unsent;
}

async function start() {
  await loadMarkdown();
  startSettings({exportAll, importFile, deleteAll});
  startShortcuts({create, search, settings: toggleSettings, copyLast, again: askAgain, focus: () => composer.focus(),
                  stop: () => runningIn(current.id)?.stop()});
  byId("new").addEventListener("click", create);
  byId("more").addEventListener("click", event => openMenu(event.currentTarget, menuOf(current)));
  store.onOtherTab(onOtherTab);
  addEventListener("hashchange", () => location.hash !== hashOf(current) && open(location.hash.slice(1)));
  const {conversation: kept, unsent} = location.hash.length > 1 ? await load(location.hash.slice(1)) : {};
  const asked = new URLSearchParams(location.search).get("q");
  show(kept ?? current);
  if (asked) composer.set(asked);
  await drawList();
  startServerView();
  if (unsent) answer();
  document.documentElement.dataset.ready = "true";
}

start();
