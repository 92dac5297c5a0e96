// The browser's own database of conversations, and all of it in memory: the list and the search need it. Other tabs of this
// page hear of changes. Without a database (private windows of some browsers) conversations last as long as the page.

const NAME = "moesaic", TABLE = "conversations";
const channel = new BroadcastChannel(NAME);
const known = new Map();    // id: conversation
let opened = null, filled = null, takeOver = null;
let denied = false, persists = null;
const DENIED = ["SecurityError", "InvalidStateError", "TypeError"];   // how browsers say that there is no database

// The request's result, once it is kept: that there is no room may be known only at the transaction's end.
function kept(transaction, request) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error ?? request.error);   // after every error
  });
}

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, {keyPath: "id"});
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

// undefined without a database. A browser may close one, as when the site's data are cleared: it is then opened once more.
async function table(mode, use, last = false) {
  if (denied) return undefined;
  try {
    const transaction = (await open()).transaction(TABLE, mode);
    return await kept(transaction, use(transaction.objectStore(TABLE)));
  } catch (error) {
    if (error?.name === "QuotaExceededError") throw new Error("the browser has no room for more conversations: export and delete some");
    opened = null;
    if (!last) return table(mode, use, true);
    denied = DENIED.includes(error?.name);
    if (!denied) throw new Error(`the browser's database of conversations fails: ${error?.message ?? "closed"}`);
    return undefined;
  }
}

// If the conversations cannot be read, the error is shown when the first one is saved.
async function fill() {
  const all = await table("readonly", t => t.getAll()).catch(() => []);
  for (const conversation of all ?? []) known.set(conversation.id, conversation);
}

export async function loadAll() {
  filled ??= fill();
  await filled;
  return [...known.values()];
}

export async function load(id) {
  await loadAll();
  return known.get(id);
}

export async function save(conversation) {
  persists ??= navigator.storage?.persist?.().catch(() => {});   // else the browser may clear them when the disk is full
  known.set(conversation.id, conversation);
  await table("readwrite", t => t.put(conversation));
  channel.postMessage(conversation.id);
}

export async function erase(id) {
  await table("readwrite", t => t.delete(id));
  known.delete(id);
  channel.postMessage(id);
}

// Takes over what another tab has kept.
export async function refresh(id) {
  const conversation = takeOver(id, await table("readonly", t => t.get(id)));
  if (conversation) known.set(id, conversation);
  else known.delete(id);
}

// take(id, saved): another tab has saved that conversation, or erased it (undefined). It returns what is known from now on.
export function onOtherTab(take) {
  takeOver = take;
  channel.onmessage = ({data: id}) => refresh(id);
}
