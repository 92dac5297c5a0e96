// From settings and messages to the body of a chat completion.
import {textWithFiles} from "./attachments.js";

// A call whose result is missing is left out: the server refuses a conversation that goes on without it.
function assistantMessage(node, answered, goesOn) {
  const calls = (node.calls ?? []).filter(call => answered.has(call.id));
  if (!node.content && !calls.length && !goesOn) return [];
  const message = {role: "assistant", content: node.content || null};
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (calls.length)
    message.tool_calls = calls.map(({id, name, arguments: text}) => ({id, type: "function", function: {name, arguments: text}}));
  return [message];
}

// The messages of a path as the API takes them. What the server refused is not sent again, so that one message that was
// too long does not spoil the next.
// continued: the last one goes on, even where it is a thought alone.
export function messagesOf(nodes, continued) {
  const answered = new Set(nodes.filter(node => node.role === "tool").map(node => node.callId));
  return nodes.flatMap((node, i) => {
    if (node.role === "assistant") return assistantMessage(node, answered, continued && i === nodes.length - 1);
    if (node.role === "tool") return [{role: "tool", tool_call_id: node.callId, content: node.content}];
    return node.refused ? [] : [{role: node.role, content: textWithFiles(node)}];
  });
}

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);
const KINDS = {
  "Tools": ["an array", Array.isArray],
  "JSON schema": ["an object, true or false", value => isObject(value) || typeof value === "boolean"],
  "Other fields": ["an object", isObject],
};

// A setting that is JSON, by its name on the page. Throws an Error that names it.
export function parseSetting(name, text) {
  if (!text?.trim()) return undefined;
  let value = null;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: not JSON (${error.message})`);
  }
  const [kind, fits] = KINDS[name];
  if (!fits(value)) throw new Error(`${name}: must be ${kind}`);
  return value;
}

// A schema as the API takes it.
const nameOf = ({title}) => typeof title === "string" && title.replace(/\W/g, "_").slice(0, 64) || "answer";

function numberOf(settings, name) {
  return settings[name] === "" || settings[name] == null ? undefined : Number(settings[name]);
}

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "max_tokens"];

export function requestOf(nodes, settings, model, continued = false) {
  const start = settings.system?.trim() ? [{role: "system", content: settings.system}] : [];
  const body = {model, messages: [...start, ...messagesOf(nodes, continued)], stream: true,
                stream_options: {include_usage: true, continuous_usage_stats: true}, return_progress: true, reasoning_effort: settings.effort};
  if (continued) Object.assign(body, {continue_final_message: true, add_generation_prompt: false});
  for (const name of NUMBERS) body[name] = numberOf(settings, name);
  if (settings.stop?.trim()) body.stop = settings.stop.split("\n").filter(Boolean);
  body.tools = parseSetting("Tools", settings.tools);
  const schema = parseSetting("JSON schema", settings.schema);
  if (schema !== undefined) body.response_format = {type: "json_schema", json_schema: {name: nameOf(schema), schema}};
  return {...body, ...parseSetting("Other fields", settings.other)};
}
