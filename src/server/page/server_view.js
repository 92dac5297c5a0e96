// Shows the server: model, device, context, and what it is doing.
import {getJson, getText} from "./api.js";
import {byId} from "./dom.js";
import {apiKey} from "./settings.js";

export const server = {model: "", context: 0};
let before = null;    // {tokens, time}: for tokens per second
let asked = null;     // the model that the metrics named when the server was asked what it is; null: it did not answer since

const gigabytes = bytes => bytes > 0 ? `${(bytes / 1e9).toFixed(bytes < 1e10 ? 1 : 0)} GB` : "";
const grouped = number => number.toLocaleString("en");

function show(model, device) {
  byId("server-model").textContent = model;
  byId("server-device").textContent = device;
  byId("empty-server").textContent = [model, device].filter(Boolean).join(" · ");
}

async function ask() {
  const info = await getJson("server_info", apiKey());
  Object.assign(server, {model: info.model, context: info.context.tokens});
  const {name, description, memory_total: memory} = info.device;
  show(info.model, `${description || name}${memory ? ", " + gigabytes(memory) : ""} · ${grouped(server.context)} tokens of context`);
}

const modelIn = metrics => metrics.match(/\{model_name=("(?:[^"\\]|\\.)*")/)?.[1] ?? "";

// Gives an empty text where a proxy refuses the address.
const textOf = address => getText(address).catch(error => {
  if (error.status >= 400 && error.status < 500) return "";
  throw error;
});

function load(text) {
  const value = name => Number(text.match(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)`, "m"))?.[1] || 0);
  const now = {tokens: value("vllm:generation_tokens_total"), time: performance.now()};
  const rate = before ? Math.max(0, (now.tokens - before.tokens) / (now.time - before.time) * 1000) : 0;
  before = now;
  return {rate, cache: value("vllm:kv_cache_usage_perc"), running: value("vllm:num_requests_running"), waiting: value("vllm:num_requests_waiting")};
}

function showLoad({rate, cache, running, waiting}) {
  const parts = [running ? `${running} running` : "idle", waiting ? `${waiting} waiting` : "", rate >= 1 ? `${rate.toFixed(0)} tok/s` : "",
                 `cache ${(100 * cache).toFixed(0)}%`];
  byId("server-load").textContent = parts.filter(Boolean).join(" · ");
  byId("server-cache").value = cache;
}

function explain(error) {
  const text = error.status === 401 ? "This server needs an API key: Settings, This browser"
             : error.status === 503 ? error.message : "The server cannot be reached";
  show(server.model, text);
  byId("server-load").textContent = "";
  asked = null;
}

// A server that was gone, or has another model, is asked anew what it is.
async function look() {
  let pause = document.hidden ? 10000 : 2000;
  try {
    const metrics = await textOf("metrics"), model = modelIn(metrics);
    if (!metrics) await textOf("ready");   // says whether the server is there
    if (model !== asked) await ask();
    asked = model;
    if (metrics) showLoad(load(metrics));
  } catch (error) {
    explain(error);
    if (error.code === "model_loading") pause = 500;
  }
  setTimeout(look, pause);
}

export const startServerView = look;

// Tokens of the last request, of those that fit.
export function showContext(used) {
  byId("context").textContent = used && server.context ? `${grouped(used)} of ${grouped(server.context)}` : "";
  byId("context").title = used ? "Tokens of this conversation, of the model's context" : "";
}
