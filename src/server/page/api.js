// The server's API, as far as the page needs it. Addresses are relative: the page may stand behind a proxy, in a folder.

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(key) {
  return {"Content-Type": "application/json", ...(key ? {Authorization: "Bearer " + key} : {})};
}

// Some servers between the page and ours have a text in place of an object.
export const messageOf = error => error.message ?? String(error);

async function errorOf(response) {
  try {
    const {error} = await response.json();
    return new ApiError(messageOf(error), response.status, error.code);
  } catch {
    return new ApiError(`the server answered ${response.status} ${response.statusText}`, response.status);
  }
}

export async function getJson(address, key) {
  const response = await fetch(address, {headers: headers(key)});
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

export async function getText(address) {
  const response = await fetch(address);
  if (!response.ok) throw await errorOf(response);
  return response.text();
}

const LOADING_PAUSE = 500;   // ms between two questions

// Until the server has loaded its model. waits(message): it has not, and how far it is.
export async function untilLoaded(signal, waits) {
  for (;;) {
    const response = await fetch("ready", {signal});
    if (response.ok) return;
    const error = await errorOf(response);
    if (error.code !== "model_loading") throw error;
    waits(error.message);
    await new Promise(resolve => setTimeout(resolve, LOADING_PAUSE));
  }
}

// The chunks of a streamed chat completion, as the server sends them.
export async function* streamChat(body, key, signal) {
  const response = await fetch("v1/chat/completions", {method: "POST", headers: headers(key), body: JSON.stringify(body), signal});
  if (!response.ok) throw await errorOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {value, done} = await reader.read();
    if (done) throw new ApiError("the connection to the server ended before the answer did");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}
