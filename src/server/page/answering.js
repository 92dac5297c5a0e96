// Answers in flight: one for each conversation, which goes on while another conversation is shown.
import {messageOf, streamChat, untilLoaded} from "./api.js";
import {add, sent} from "./conversation.js";
import {instructionsOf} from "./instructions.js";
import {requestOf} from "./request.js";
import {apiKey, settings} from "./settings.js";
import {save} from "./store.js";

const SAVE_EVERY = 1000;    // ms; what a reload in the middle of an answer keeps
const running = new Map();  // id of a conversation: Answer

const shown = number => number.toLocaleString("en");

// Words for the server's prompt_progress. Rate and time left are of the tokens that the prefix cache did not have.
export function readingText({total, cache, processed, time_ms: time}) {
  const rate = time > 0 ? (processed - cache) / time * 1000 : 0;
  const left = rate > 0 ? [`${rate.toFixed(0)} tok/s`, `${Math.ceil((total - processed) / rate)} s left`] : [];
  return [`Reading the prompt: ${shown(processed)} of ${shown(total)} tokens`, ...left].join(" · ");
}

const stoppedText = reading =>
  reading ? `Stopped when ${shown(reading.processed)} of ${shown(reading.total)} tokens of the prompt were read` : "Stopped";

export const runningIn = id => running.get(id);

// The lock that a tab has while it answers a conversation. On http of another host a browser has no locks, and all looks as if
// it was left.
const lockOf = id => "moesaic " + id;

export async function isAnsweredElsewhere(id) {
  const {held} = await navigator.locks?.query().catch(() => null) ?? {held: []};
  return !running.has(id) && held.some(({name}) => name === lockOf(id));
}

// Waits until the other tab has ended the answer, or was closed.
export const endedElsewhere = id => navigator.locks.request(lockOf(id), () => {});

export class Answer {
  // continued: the answer of the path's end, which goes on; else a new one is made.
  constructor(conversation, continued = null) {
    this.conversation = conversation;
    this.asked = sent(conversation);
    this.continues = !!continued;
    this.node = continued ?? add(conversation, {role: "assistant"});
    this.before = continued?.stats ? continued.stats.tokens + (continued.stats.before ?? 0) : 0;
    if (continued) {
      delete continued.error;
      delete continued.finish;
    }
    this.controller = new AbortController();
    this.view = null;       // a MessageView, while the conversation is shown
    this.start = performance.now();
    this.count = 0;         // chunks with text
    this.reading = null;    // the server's last prompt_progress
    this.saved = this.start;
    this.dropped = false;   // the conversation has been deleted, and is not saved again
    running.set(conversation.id, this);
  }

  stop() {
    this.controller.abort();
  }

  drop() {
    this.dropped = true;
    this.stop();
  }

  async save() {
    if (!this.dropped) await save(this.conversation).catch(() => {});
  }

  // Counts are the server's. tokens: of the last request alone; before: those of the requests that it continues. A chunk may
  // have several tokens, so the rate is that of the tokens between the first chunk and the last.
  stats() {
    const {usage = {}, first, last, before} = this;
    const seconds = this.count ? (last.time - first.time) / 1000 : 0;
    return {tokens: usage.completion_tokens ?? this.count, before, rate: seconds > 0 ? (last.tokens - first.tokens) / seconds : 0,
            first: this.count ? (first.time - this.start) / 1000 : 0, prompt: usage.prompt_tokens ?? this.reading?.total ?? 0,
            cached: usage.prompt_tokens_details?.cached_tokens ?? 0};
  }

  take(chunk) {
    if (chunk.error) throw new Error(messageOf(chunk.error));
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.prompt_progress) this.takeProgress(chunk.prompt_progress);
    const choice = chunk.choices?.[0];
    if (choice?.finish_reason) this.node.finish = choice.finish_reason;
    if (choice?.delta) this.takeDelta(choice.delta);
  }

  takeProgress(progress) {
    this.reading = progress;
    this.view?.showWaiting(progress.processed < progress.total ? readingText(progress) : "");
  }

  takeDelta(delta) {
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (!reasoning && !delta.content && !delta.tool_calls) return;
    this.last = {time: performance.now(), tokens: this.usage?.completion_tokens ?? this.count + 1};
    if (!this.count++) this.first = this.last;
    if (reasoning) {
      this.node.reasoning = (this.node.reasoning ?? "") + reasoning;
      this.view?.addReasoning(reasoning);
    }
    if (delta.content) {
      this.node.content += delta.content;
      this.view?.addContent(delta.content);
    }
    for (const part of delta.tool_calls ?? []) this.takeCall(part);
    this.keep();
  }

  takeCall({index, id, function: part}) {
    const calls = this.node.calls ??= [];
    const call = calls[index] ??= {id, name: part.name, arguments: ""};
    call.arguments += part.arguments ?? "";
    this.view?.setCall(call);
  }

  keep() {
    if (this.last.time - this.saved < SAVE_EVERY) return;
    this.saved = this.last.time;
    this.view?.showSummary(this.stats());
    this.save();
  }

  // A request that is refused before there is a token leaves no answer behind; the message says why it was not sent.
  fail(error) {
    const {node, conversation} = this;
    const text = error.name === "AbortError" ? stoppedText(!this.count && this.reading) : error instanceof TypeError ? "the server cannot be reached" : error.message;
    const question = this.asked.at(-1);
    if (error.name !== "AbortError" && !this.count && question?.role === "user") {
      question.refused = text;
      if (error.code === "context_length_exceeded" && this.asked.filter(({role}) => role === "user").length > 1) question.tooLong = true;
      delete conversation.nodes[node.id];
      conversation.leaf = question.id;
      return;
    }
    node.error = text;
  }

  // False: the server is still loading its model.
  async ask(model) {
    const body = requestOf(this.asked, {...settings, system: instructionsOf(this.conversation)}, model || undefined, this.continues);
    this.start = performance.now();
    try {
      for await (const chunk of streamChat(body, apiKey(), this.controller.signal)) this.take(chunk);
    } catch (error) {
      if (error.code !== "model_loading") throw error;
      return false;
    }
    return true;
  }

  // The message is kept, over a reload of the page too, and sent when the model is there.
  async waitForModel() {
    if (!this.continues) this.node.unsent = true;
    await this.save();
    await untilLoaded(this.controller.signal, message => this.view?.showWaiting(`Sent when it is ready: ${message}`));
    delete this.node.unsent;
    this.view?.showWaiting("");
  }

  async run(server) {
    const ended = this.answer(server);
    navigator.locks?.request(lockOf(this.conversation.id), {mode: "shared"}, () => ended).catch(() => {});
    await ended;
  }

  // server.model may become known only when the model is loaded.
  async answer(server) {
    const {conversation} = this;
    try {
      while (!await this.ask(server.model)) await this.waitForModel();
    } catch (error) {
      this.fail(error);
    }
    delete this.node.unsent;
    if (this.count || this.reading) this.node.stats = this.stats();
    conversation.changed = Date.now();
    await this.save();   // before somebody else may load it
    running.delete(conversation.id);
  }
}
