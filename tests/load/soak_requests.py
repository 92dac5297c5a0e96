"""What soak.py asks: requests of every kind, each made from a seed and its number alone, and what of an answer must be the same
when the request is alone."""

import json
import math
import random

WORDS = ("the sun a cat walks over blue hills and then sings of rain in some old town by night while seven small boats carry "
         "apples home 17 + 25 = 42 café naïve 北京 привет \U0001f600 {\"a\": 1} <b>").split(" ")
BEGINNINGS = 16  # shared by prompts

# Members of an answer that differ from one time to the next.
VOLATILE = {"id", "created", "created_at", "completed_at", "item_id", "call_id", "sequence_number", "timings", "response_id",
            "prompt_tokens_details", "input_tokens_details", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
            "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "cache_prompt", "encrypted_content"}
PARTS = {"text", "content", "reasoning", "reasoning_content", "thinking", "arguments", "partial_json", "delta", "response"}


class Request:
    """path, body (bytes), stream, how the client behaves, and the statuses that are right."""

    def __init__(self, path, body, behaviour="stays", statuses=(200,)):
        self.path, self.body, self.behaviour, self.statuses = path, body, behaviour, statuses

    def alone(self):
        """The same for a client that stays, with nothing taken from the prefix cache where the API can say so."""
        body = self.body
        if self.path.startswith("/v1/") and "messages" not in self.path:
            body = json.dumps({**json.loads(body), "cache_prompt": False}).encode()
        return Request(self.path, body)


def log_uniform(r, most):
    return round(math.exp(r.uniform(0, math.log(most))))


def text(r, most):
    own = " ".join(r.choices(WORDS, k=log_uniform(r, most)))
    if r.random() < 0.6:
        return own
    shared = random.Random(r.randrange(BEGINNINGS))
    return " ".join(shared.choices(WORDS, k=log_uniform(shared, most))) + " " + own


def schema(r):
    """One that no cache knows, so that compiled schemas come and go."""
    return {"type": "object", "title": str(r.random()), "required": ["a"], "additionalProperties": False,
            "properties": {"a": {"type": "string", "maxLength": r.randint(1, 20)}, "b": {"type": "integer"},
                           "c": {"enum": ["x", "y", r.randint(0, 9)]}}}


def guided(r):
    """A grammar of any kind, as a completion takes it."""
    return r.choice([
        lambda: {"guided_json": schema(r)},
        lambda: {"guided_regex": "[a-z]{1,%d}( [0-9]{2}){0,3}" % r.randint(1, 30)},
        lambda: {"guided_choice": [" ".join(r.choices(WORDS[:9], k=3)) for _ in range(4)]},
        lambda: {"grammar": 'root ::= ([a-z] | " "){1,%d} "."' % r.randint(1, 40)}])()


def sampling(r, tokens):
    """Options that completions and chats share. The seed is always there: without it no two answers are alike."""
    options = {"max_tokens": log_uniform(r, tokens), "seed": r.randrange(1 << 31), "temperature": 0 if r.random() < 0.3 else round(r.uniform(0.2, 2), 2)}
    for chance, more in (
            (0.2, lambda: {"top_p": round(r.uniform(0.1, 1), 2)}), (0.2, lambda: {"top_k": r.randint(1, 100)}),
            (0.1, lambda: {"min_p": round(r.uniform(0, 0.3), 2)}), (0.1, lambda: {"presence_penalty": r.uniform(-2, 2)}),
            (0.1, lambda: {"frequency_penalty": r.uniform(-2, 2)}), (0.1, lambda: {"repetition_penalty": r.uniform(0.8, 1.5)}),
            (0.15, lambda: {"logit_bias": {str(r.randrange(200)): r.randint(-100, 100) for _ in range(r.randint(1, 8))}}),
            (0.15, lambda: {"stop": r.choices(WORDS[:20], k=r.randint(1, 3))}), (0.1, lambda: {"n": 2}),
            (0.1, lambda: {"min_tokens": r.randint(0, min(4, options["max_tokens"]))}), (0.3, lambda: {"ignore_eos": True}),
            (0.05, lambda: {"bad_words": r.choices(WORDS[:20], k=2)})):
        if r.random() < chance:
            options.update(more())
    return options


def completion(r, words, tokens):
    body = {"prompt": text(r, words), **sampling(r, tokens)}
    if r.random() < 0.2:
        body.update(guided(r), ignore_eos=False)
    if r.random() < 0.15:
        body.update(logprobs=r.randint(0, 5))
    if r.random() < 0.03:
        body.update(echo=True)
    return "/v1/completions", body


def chat(r, words, tokens):
    body = {"messages": [{"role": "user", "content": text(r, words)}], **sampling(r, tokens)}
    if r.random() < 0.3:
        body["messages"][:0] = [{"role": "system", "content": text(r, 20)}, {"role": "user", "content": "Hello."},
                                {"role": "assistant", "content": text(r, 20)}]
    kind = r.random()
    body["ignore_eos"] = kind > 0.3 and "ignore_eos" in body
    if kind < 0.15:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema(r)}}
    elif kind < 0.3:
        function = {"name": "look", "parameters": schema(r)}
        body.update(tools=[{"type": "function", "function": function}], tool_choice=r.choice(["auto", "required"]))
    if r.random() < 0.2:
        body["thinking_token_budget"] = r.choice([0, 1, 8, 64])
    if r.random() < 0.15:
        body.update(logprobs=True, top_logprobs=r.randint(0, 5))
    return "/v1/chat/completions", body


def response(r, words, tokens):
    return "/v1/responses", {"input": text(r, words), "max_output_tokens": 16 + log_uniform(r, tokens), "temperature": 0,
                             "store": r.random() < 0.5}


def message(r, words, tokens):
    return "/v1/messages", {"messages": [{"role": "user", "content": text(r, words)}], "temperature": 0,
                            "max_tokens": log_uniform(r, tokens)}


def generate(r, words, tokens):
    return "/api/generate", {"prompt": text(r, words), "stream": False,
                             "options": {"temperature": 1, "seed": r.randrange(1 << 31), "num_predict": log_uniform(r, tokens)}}


def wrong(r):
    """A request that must be refused."""
    path, body = completion(r, 20, 20)
    return Request(path, r.choice([
        lambda: b'{"prompt": "a", ', lambda: b"\xff\xfe", lambda: json.dumps({**body, "temperature": 9}).encode(),
        lambda: json.dumps({**body, "max_tokens": "many"}).encode(), lambda: json.dumps({**body, "guided_regex": "["}).encode(),
        lambda: json.dumps({**body, "grammar": "root ::= nowhere"}).encode(),
        lambda: json.dumps({**body, "logit_bias": {"-1": 1}}).encode()])(), statuses=(400,))


BEHAVIOURS = (("leaves at once", 0.05), ("leaves at the first bytes", 0.06), ("leaves later", 0.05), ("closes its half", 0.03),
              ("leaves within its body", 0.02), ("reads late", 0.03))


def behaviour(r):
    chance = r.random()
    for name, share in BEHAVIOURS:
        chance -= share
        if chance < 0:
            return name
    return "stays"


def make(seed, index, model, words, tokens):
    r = random.Random(f"{seed} {index}")
    if r.random() < 0.03:
        return wrong(r)
    kind = r.choices([completion, chat, response, message, generate], [60, 25, 5, 5, 5])[0]
    path, body = kind(r, words, tokens)
    body["model"] = model
    if "stream" not in body:
        body["stream"] = r.random() < 0.7
    return Request(path, json.dumps(body).encode(), behaviour(r))


def merge(into, part):
    """Adds what an event has: texts are continued, lists too, or by the index of their elements."""
    for key, value in part.items():
        if key in VOLATILE or value is None:
            continue
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            merge_list(into.setdefault(key, []), value)
        elif isinstance(value, str) and key in PARTS:
            into[key] = into.get(key, "") + value
        else:
            into[key] = value


def merge_list(into, values):
    for value in values:
        if not isinstance(value, dict):
            into.append(value)
            continue
        known = next((v for v in into if "index" in value and isinstance(v, dict) and v.get("index") == value["index"]), None)
        if known is None:
            known = {}
            into.append(known)
        merge(known, value)
        if "index" in value:
            into.sort(key=lambda v: v.get("index", 0))


def events(body):
    """The JSON of a whole answer, or of the events of a stream that are whole."""
    if not body.startswith((b"data:", b"event:", b":")):
        return [json.loads(body)]
    whole = body[:body.rfind(b"\n") + 1].split(b"\n")
    return [json.loads(line[6:]) for line in whole if line.startswith(b"data: ") and line != b"data: [DONE]"]


def said(body):
    """What an answer says, in whatever pieces it came."""
    answer = {}
    for event in events(body):
        if event.get("type") != "ping":
            merge(answer.setdefault(" ".join(str(event.get(key, "")) for key in ("type", "output_index", "index")), {}), event)
    return answer


def begins(part, whole):
    """Whether what a client had when it left is how the answer begins."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and begins(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(begins, part, whole))
    return whole.startswith(part) if isinstance(part, str) and isinstance(whole, str) else part == whole
