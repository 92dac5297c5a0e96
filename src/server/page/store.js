// The browser's own database of conversations. Other tabs of this page hear of changes.

const NAME = "moesaic", TABLE = "conversations";
const channel = new BroadcastChannel(NAME);
let opened = null;
let failed = false;                 // private windows of some browsers have no database
const inMemory = new Map();

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

async function table(mode, use, otherwise) {
  try {
    if (!failed) return await promise(use((await open()).transaction(TABLE, mode).objectStore(TABLE)));
  } catch (error) {
    if (error.name === "QuotaExceededError") throw new Error("the browser has no room for more conversations: export and delete some");
    failed = true;
  }
  return otherwise();
}

export const load = id => table("readonly", t => t.get(id), () => inMemory.get(id));
export const loadAll = () => table("readonly", t => t.getAll(), () => [...inMemory.values()]);

export async function save(conversation) {
  await table("readwrite", t => t.put(conversation), () => void inMemory.set(conversation.id, conversation));
  channel.postMessage(conversation.id);
}

export async function erase(id) {
  await table("readwrite", t => t.delete(id), () => void inMemory.delete(id));
  channel.postMessage(id);
}

// listener(id): another tab has saved or erased that conversation.
export function onOtherTab(listener) {
  channel.onmessage = event => listener(event.data);
}
