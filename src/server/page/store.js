// The browser's own database of conversations, and all of it in memory: the list and the search need it. Other tabs of this
// page hear of changes. Without a database (private windows of some browsers) conversations last as long as the page.

const NAME = "moesaic", TABLE = "conversations";
const channel = new BroadcastChannel(NAME);
const known = new Map();    // id: conversation
let opened = null, filled = null;
let failed = false;

function promise(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
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

// undefined without a database.
async function table(mode, use) {
  try {
    if (!failed) return await promise(use((await open()).transaction(TABLE, mode).objectStore(TABLE)));
  } catch (error) {
    if (error.name === "QuotaExceededError") throw new Error("the browser has no room for more conversations: export and delete some");
    failed = true;
  }
  return undefined;
}

async function fill() {
  for (const conversation of await table("readonly", t => t.getAll()) ?? []) known.set(conversation.id, conversation);
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
  known.set(conversation.id, conversation);
  await table("readwrite", t => t.put(conversation));
  channel.postMessage(conversation.id);
}

export async function erase(id) {
  known.delete(id);
  await table("readwrite", t => t.delete(id));
  channel.postMessage(id);
}

// listener(id): another tab has saved or erased that conversation.
export function onOtherTab(listener) {
  channel.onmessage = async ({data: id}) => {
    const conversation = await table("readonly", t => t.get(id));
    if (conversation) known.set(id, conversation);
    else known.delete(id);
    listener(id);
  };
}
