"""The other APIs over plain HTTP: Anthropic's, Ollama's, llama.cpp's, stored responses, forms of an answer that are no
JSON, and requests with the fields that Open WebUI and Continue send."""

import json
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from served import Served  # noqa: E402

TINY = pathlib.Path(__file__).resolve().parents[2] / "models/tiny"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SUM, WEATHER = "What is 17 + 25?", "What is the weather in Paris?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Gets the weather of a city.", "parameters": PARAMETERS}
THINKING = {"type": "enabled", "budget_tokens": 8192}


def user(text):
    return [{"role": "user", "content": text}]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served("--max-batch", 4, "--log", "quiet", "--stored-responses", 3).wait_ready()

    @classmethod
    def tearDownClass(cls):
        status, log = cls.server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with {status}: {log}")

    def post(self, path, body, status=200):
        got, answer = self.server.post(path, body)
        self.assertEqual(got, status, answer)
        return answer

    def get(self, path, status=200):
        got, _, data = self.server.call("GET", path)
        self.assertEqual(got, status, data)
        return json.loads(data)

    def served(self, options, do):
        """What do(server) gives, for a server of its own with these options."""
        server = Served(*options).wait_ready()
        try:
            return do(server)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def stream(self, path, body):
        """(content type, text) of a streamed answer."""
        status, headers, data = self.server.call("POST", path, body)
        self.assertEqual(status, 200, data)
        return headers["Content-Type"], data.decode()


class Forms(Case):
    def content(self, **form):
        return self.post(CHAT, {"messages": user(SUM), "temperature": 0, **form})["choices"][0]["message"]["content"]

    def test_regular_expressions(self):
        for form in ({"guided_regex": "[a-f]{3}-[0-9]{2}"}, {"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}}):
            self.assertRegex(self.content(**form), r"\A[a-f]{3}-[0-9]{2}\Z")

    def test_choices(self):
        for form in ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}):
            self.assertIn(self.content(**form), ("yes", "no"))

    def test_grammars(self):
        grammar = 'root ::= "(" item ("," item)* ")"\nitem ::= [0-9]{1,2} | root'
        for form in ({"grammar": grammar}, {"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
            self.assertRegex(self.content(max_tokens=200, **form), r"\A\([0-9(),]*\)?\Z")

    def test_completions(self):
        answer = self.post("/v1/completions", {"prompt": "Once", "grammar": 'root ::= "once" " upon"*', "max_tokens": 30})
        self.assertRegex(answer["choices"][0]["text"], r"\Aonce( upon)*( u?p?o?)?\Z")

    def test_refused(self):
        for form in ({"guided_regex": ""}, {"guided_grammar": ""}, {"structured_outputs": {"regex": ""}}, {"guided_regex": "a(b"}, {"grammar": "start: a"}, {"guided_choice": [""]},
                     {"guided_choice": []}, {"structured_outputs": {"choice": []}},
                     {"structured_outputs": {"regex": "a", "choice": ["b"]}}, {"guided_regex": "a", "grammar": 'root ::= "a"'}):
            error = self.post(CHAT, {"messages": user(SUM), **form}, 400)["error"]
            self.assertIn(error["param"], form)
            self.assertNotIn("\n", error["message"])


class Echo(Case):
    """As lm-eval asks for the log-likelihood of a text."""

    def test_the_prompts_log_probabilities(self):
        text = "Once upon a time"
        tokens = self.post("/tokenize", {"prompt": text})["tokens"]
        body = {"prompt": tokens, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
        logprobs = self.post("/v1/completions", body)["choices"][0]["logprobs"]
        self.assertEqual("".join(logprobs["tokens"][:len(tokens)]), text)
        self.assertEqual(len(logprobs["token_logprobs"]), len(tokens) + 1)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        self.assertEqual(logprobs["text_offset"][0], 0)
        # A character of several tokens counts once.
        for text in ("Say \U0001f600\u00e9 abc", "\U0001f600abc"):
            choice = self.post("/v1/completions", {"prompt": text, "max_tokens": 0, "logprobs": 1, "echo": True})["choices"][0]
            offsets = dict(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]))
            for token, offset in offsets.items():
                if "\ufffd" not in token:
                    self.assertTrue(text[offset:].startswith(token), (text, token, offset))
        for own, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
            self.assertLessEqual(own, max(top.values()) + 1e-6)
            self.assertIn(own, top.values())
        # A prompt gives its last token the same log-probability as sampling does.
        shorter = {**body, "prompt": tokens[:-1], "logprobs": 5, "echo": False}
        sampled = self.post("/v1/completions", shorter)["choices"][0]["logprobs"]["top_logprobs"][0]
        self.assertAlmostEqual(max(sampled.values()), max(logprobs["top_logprobs"][len(tokens) - 1].values()), places=3)

    def test_the_sampled_token_is_among_the_likeliest_or_beside_them(self):
        for likeliest in (0, 1, 3):
            body = {"prompt": "Once upon", "max_tokens": 20, "logprobs": likeliest, "temperature": 2, "seed": 1}
            logprobs = self.post("/v1/completions", body)["choices"][0]["logprobs"]
            self.assertEqual({len(top) for top in logprobs["top_logprobs"]} - {max(likeliest, 1)}, {likeliest + 1} - {1})
            for own, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"]):
                self.assertIn(own, top.values())

    def test_the_prompt_alone(self):
        answer = self.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 0, "logprobs": 0, "echo": True})
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], "".join(choice["logprobs"]["tokens"])), ("Once upon", "Once upon"))
        self.assertEqual(answer["usage"]["completion_tokens"], 0)
        self.post("/v1/completions", {"prompt": "Once", "max_tokens": 0}, 400)

    def test_stream(self):
        body = {"prompt": "Once upon", "max_tokens": 3, "logprobs": 1, "echo": True, "temperature": 0}
        whole = self.post("/v1/completions", body)["choices"][0]
        _, text = self.stream("/v1/completions", {**body, "stream": True})
        chunks = [json.loads(line[6:])["choices"][0] for line in text.split("\n") if line.startswith("data: {")]
        self.assertEqual("".join(c["text"] for c in chunks), whole["text"])
        self.assertEqual([t for c in chunks for t in c["logprobs"]["tokens"]], whole["logprobs"]["tokens"])


class Progress(Case):
    def test_of_a_prompt(self):
        chat = {"messages": user("word " * 300)}, CHAT
        text = {"prompt": "word " * 300, "max_tokens": 4}, "/v1/completions"

        def read(server, body, path):
            _, _, data = server.call("POST", path, {**body, "stream": True, "return_progress": True, "max_tokens": 4})
            chunks = [json.loads(line) for line in re.findall(r"^data: ({.*)$", data.decode(), re.MULTILINE)]
            told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
            self.assertEqual(["prompt_progress" in chunk for chunk in chunks], [True] * len(told) + [False] * (len(chunks) - len(told)))
            self.assertEqual(told[-1]["processed"], told[-1]["total"])
            for key in ("processed", "time_ms"):
                self.assertEqual([t[key] for t in told], sorted(t[key] for t in told))
            return told

        def run(server):
            for body, path in (chat, text):
                first = read(server, body, path)
                self.assertGreater(len(first), 3)
                self.assertLess(first[0]["processed"], first[0]["total"])
                again = read(server, body, path)
                self.assertGreater(again[0]["cache"], 200)
                self.assertEqual({t["total"] for t in again}, {first[0]["total"]})

        self.served(("--max-rows", 64, "--log", "quiet"), run)


class Stored(Case):
    def respond(self, text, status=200, **more):
        return self.post(RESPONSES, {"input": text, "temperature": 0, "reasoning": {"effort": "low"}, **more}, status)

    def test_a_conversation(self):
        first = self.respond("My name is Nora. What is 17 + 25?")
        self.assertTrue(first["store"])
        second = self.respond("And 47 x 36?", previous_response_id=first["id"])
        self.assertEqual(second["previous_response_id"], first["id"])
        self.assertGreater(second["usage"]["input_tokens"], first["usage"]["input_tokens"])
        self.assertEqual(self.get(f"{RESPONSES}/{first['id']}"), first)
        deleted = json.loads(self.server.call("DELETE", f"{RESPONSES}/{first['id']}")[2])
        self.assertEqual(deleted, {"id": first["id"], "object": "response", "deleted": True})
        self.get(f"{RESPONSES}/{first['id']}", 404)
        error = self.respond("And?", 400, previous_response_id=first["id"])["error"]
        self.assertEqual(error["code"], "previous_response_not_found")
        third = self.respond("Again?", previous_response_id=second["id"])  # has all of it
        self.assertGreater(third["usage"]["input_tokens"], second["usage"]["input_tokens"])

    def test_a_conversation_goes_on_after_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ("--log", "quiet", "--stored-responses", folder)
            ask = {"input": "My name is Nora. What is 17 + 25?", "temperature": 0, "reasoning": {"effort": "low"}}
            first = self.served(options, lambda server: server.post(RESPONSES, ask))[1]
            more = {**ask, "input": "And 47 x 36?", "previous_response_id": first["id"]}

            def go_on(server):
                status, second = server.post(RESPONSES, more)
                self.assertEqual(status, 200, second)
                self.assertEqual(json.loads(server.call("GET", f"{RESPONSES}/{first['id']}")[2]), first)
                server.call("DELETE", f"{RESPONSES}/{first['id']}")
                return second

            second = self.served(options, go_on)
            self.assertGreater(second["usage"]["input_tokens"], first["usage"]["input_tokens"])
            found = [self.served(options, lambda server, r=r: server.call("GET", f"{RESPONSES}/{r['id']}")[0])
                     for r in (first, second)]
            self.assertEqual(found, [404, 200])

    def test_streamed_ones_are_stored_too(self):
        _, text = self.stream(RESPONSES, {"input": SUM, "stream": True})
        done = json.loads(re.findall(r"^data: (.*)$", text, re.MULTILINE)[-1])["response"]
        self.assertEqual(self.get(f"{RESPONSES}/{done['id']}")["output"], done["output"])

    def test_what_is_not_stored(self):
        first = self.respond(SUM)
        path = f"{RESPONSES}/{first['id']}"
        self.assertEqual(self.get(path + "?include=usage&stream=false"), first)
        for query in ("?stream=true", "?include=usage&stream=1&x"):
            self.assertEqual(self.get(path + query, 400)["error"]["param"], "stream")
        self.assertIn("nothing behind the id", self.get(path + "/input_items", 404)["error"]["message"])
        for path, instead in ((path + "/cancel", "behind the id"), (RESPONSES + "/compact", "as input")):
            status, answer = self.server.post(path, {"model": "tiny", "input": SUM})
            self.assertEqual((status, answer["error"]["code"]), (404, "not_found"))
            self.assertIn(instead, answer["error"]["message"])
        self.assertEqual(self.server.call("POST", f"{RESPONSES}/{first['id']}", "{}")[0], 405)

    def test_input_tokens(self):
        tools = [{"type": "function", **FUNCTION}]
        first = self.respond(SUM, instructions="Be brief.", tools=tools)
        for body, counted in (({"input": SUM, "instructions": "Be brief.", "tools": tools}, first),
                              ({"input": WEATHER, "previous_response_id": first["id"]}, self.respond(WEATHER, previous_response_id=first["id"]))):
            self.assertEqual(self.post(RESPONSES + "/input_tokens", {"model": "tiny", "reasoning": {"effort": "low"}, **body}),
                             {"object": "response.input_tokens", "input_tokens": counted["usage"]["input_tokens"]})
        many = self.post(RESPONSES + "/input_tokens", {"input": "word " * 30000})
        self.assertGreater(many["input_tokens"], 30000)
        for wrong, param in (({"input": 5}, "input"), ({"input": SUM, "previous_response_id": "resp_none"}, "previous_response_id")):
            self.assertEqual(self.post(RESPONSES + "/input_tokens", wrong, 400)["error"]["param"], param)

    def test_bounded_and_on_request(self):
        kept = [self.respond(SUM)["id"] for _ in range(4)]
        self.get(f"{RESPONSES}/{kept[0]}", 404)
        self.get(f"{RESPONSES}/{kept[3]}")
        self.get(f"{RESPONSES}/{self.respond(SUM, store=False)['id']}", 404)


class Anthropic(Case):
    def ask(self, text=SUM, **more):
        return {"model": "claude-sonnet-4-5", "max_tokens": 300, "messages": user(text), "temperature": 0, **more}

    def events(self, body):
        content_type, text = self.stream(MESSAGES, {**body, "stream": True})
        self.assertIn("text/event-stream", content_type)
        events = []
        for block in text.strip().split("\n\n"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            self.assertEqual(name, "event: " + events[-1]["type"])
        return events

    def test_chat_and_thinking(self):
        answer = self.post(MESSAGES, self.ask())
        self.assertEqual([b["type"] for b in answer["content"]], ["text"])
        self.assertIn("42", answer["content"][0]["text"])
        self.assertEqual((answer["role"], answer["stop_reason"], answer["model"]), ("assistant", "end_turn", "tiny"))
        answer = self.post(MESSAGES, self.ask(thinking=THINKING))
        self.assertEqual([b["type"] for b in answer["content"]], ["thinking", "text"])

    def test_stream(self):
        whole = self.post(MESSAGES, self.ask(thinking=THINKING))
        events = self.events(self.ask(thinking=THINKING))
        self.assertEqual([events[0]["type"], events[-2]["type"], events[-1]["type"]],
                         ["message_start", "message_delta", "message_stop"])
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        self.assertEqual("".join(d.get("text", "") for d in deltas), whole["content"][1]["text"])
        self.assertEqual("".join(d.get("thinking", "") for d in deltas), whole["content"][0]["thinking"])
        self.assertEqual(events[-2]["delta"]["stop_reason"], "end_turn")
        self.assertEqual(events[-2]["usage"]["output_tokens"], whole["usage"]["output_tokens"])

    def test_tools(self):
        tool = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": PARAMETERS}
        first = self.post(MESSAGES, self.ask(WEATHER, tools=[tool], thinking=THINKING))
        call = first["content"][-1]
        self.assertEqual((first["stop_reason"], call["type"], call["name"]), ("tool_use", "tool_use", "get_weather"))
        self.assertIn("Paris", call["input"].values())
        history = [*user(WEATHER), {"role": "assistant", "content": first["content"]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"],
                                                 "content": '{"weather": "sunny", "degrees": 21}'}]}]
        second = self.post(MESSAGES, {**self.ask(tools=[tool], thinking=THINKING), "messages": history})
        self.assertIn("21", second["content"][-1]["text"])
        arguments = "".join(e["delta"].get("partial_json", "") for e in self.events(self.ask(WEATHER, tools=[tool], thinking=THINKING))
                            if e["type"] == "content_block_delta")
        self.assertEqual(json.loads(arguments), call["input"])
        forced = self.post(MESSAGES, self.ask(tools=[tool], tool_choice={"type": "any"}))
        self.assertEqual(forced["stop_reason"], "tool_use")

    def test_stops(self):
        answer = self.post(MESSAGES, self.ask(stop_sequences=["42"]))
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("stop_sequence", "42"))
        self.assertEqual(self.post(MESSAGES, self.ask(max_tokens=2))["stop_reason"], "max_tokens")

    def test_count_tokens(self):
        counted = self.post(MESSAGES + "/count_tokens", {"model": "tiny", "messages": user(SUM)})["input_tokens"]
        usage = self.post(MESSAGES, self.ask())["usage"]
        prompt = sum(usage[k] for k in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
        self.assertEqual(counted, prompt)

    def test_errors(self):
        for body, kind, status in (({"messages": user(SUM)}, "invalid_request_error", 400),
                                   (self.ask(model="other"), "not_found_error", 404)):
            error = self.post(MESSAGES, body, status)
            self.assertEqual((error["type"], error["error"]["type"]), ("error", kind))
        self.assertEqual(self.get(MESSAGES, 405)["error"]["type"], "invalid_request_error")
        self.assertIn("/v1/messages", self.post(MESSAGES + "/batches", {}, 404)["error"]["message"])
        status, headers, data = self.server.call("GET", "/v1/models/none", headers={"anthropic-version": "2023-06-01"})
        error = json.loads(data)
        self.assertEqual((status, error["error"]["type"], error["request_id"]), (404, "not_found_error", headers["request-id"]))

    def test_continue(self):
        cached = {"cache_control": {"type": "ephemeral"}}
        tool = {"name": "get_weather", "description": "Gets it.", "input_schema": PARAMETERS}
        body = {"top_k": 40, "top_p": 0.9, "temperature": 0.2, "max_tokens": 200, "model": "claude-sonnet-4-5",
                "stop_sequences": ["</stop>"], "stream": True, "tools": [tool], "thinking": THINKING,
                "system": [{"type": "text", "text": "Be brief.", **cached}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": WEATHER}]},
                             {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
                             {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather",
                                                                "input": {"city": "Paris"}, **cached}]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                                           "content": "21 degrees", **cached}]}]}
        self.assertEqual(self.events(body)[-1]["type"], "message_stop")


class Ollama(Case):
    def lines(self, path, body):
        content_type, text = self.stream(path, body)
        self.assertEqual(content_type, "application/x-ndjson")
        return [json.loads(line) for line in text.strip().split("\n")]

    def ask(self, text=SUM, **more):
        return {"model": "tiny", "messages": user(text), "options": {"temperature": 0}, **more}

    def test_chat(self):
        whole = self.post("/api/chat", self.ask(stream=False))
        self.assertIn("42", whole["message"]["content"])
        self.assertTrue(whole["message"]["thinking"])
        self.assertEqual((whole["done"], whole["done_reason"]), (True, "stop"))
        self.assertGreaterEqual(whole["total_duration"], whole["eval_duration"])
        lines = self.lines("/api/chat", self.ask())
        self.assertEqual("".join(one["message"]["content"] for one in lines), whole["message"]["content"])
        self.assertEqual("".join(one["message"].get("thinking", "") for one in lines), whole["message"]["thinking"])
        self.assertEqual([one["done"] for one in lines], [False] * (len(lines) - 1) + [True])
        self.assertNotIn("thinking", self.post("/api/chat", self.ask(stream=False, think=False))["message"])

    def test_tools(self):
        tools = [{"type": "function", "function": FUNCTION}]
        first = self.post("/api/chat", self.ask(WEATHER, tools=tools, stream=False))["message"]
        call = first["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "get_weather")
        self.assertIn("Paris", call["arguments"].values())
        history = [*user(WEATHER), first, {"role": "tool", "tool_name": "get_weather",
                                           "content": '{"weather": "sunny", "degrees": 21}'}]
        second = self.post("/api/chat", {**self.ask(tools=tools, stream=False), "messages": history})
        self.assertIn("21", second["message"]["content"])
        streamed = [one for one in self.lines("/api/chat", self.ask(WEATHER, tools=tools)) if "tool_calls" in one["message"]]
        self.assertEqual(streamed[0]["message"]["tool_calls"][0]["function"]["arguments"], call["arguments"])

    def test_format(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
        content = self.post("/api/chat", self.ask(format=schema, stream=False))["message"]["content"]
        self.assertEqual(list(json.loads(content)), ["sum"])

    def test_generate(self):
        body = {"model": "tiny:latest", "prompt": SUM, "options": {"temperature": 0, "num_predict": 200}}
        whole = self.post("/api/generate", {**body, "stream": False})
        self.assertIn("42", whole["response"])
        self.assertEqual("".join(one["response"] for one in self.lines("/api/generate", body)), whole["response"])
        self.assertTrue(self.post("/api/generate", {**body, "raw": True, "prompt": "Once", "stream": False})["response"])
        self.assertEqual(self.post("/api/generate", {"model": "tiny"})["done_reason"], "load")

    def test_models(self):
        self.assertRegex(self.get("/api/version")["version"], r"^\d+\.\d+\.\d+$")
        tags = self.get("/api/tags")["models"]
        self.assertEqual([m["name"] for m in tags], ["tiny"])
        weights = (TINY / "model.safetensors").stat().st_size
        self.assertAlmostEqual(tags[0]["size"] / weights, 1, delta=0.02)  # the file has a header, too
        running = self.get("/api/ps")["models"][0]
        self.assertEqual(running["context_length"], 1024)
        self.assertEqual(running["size"], self.get("/server_info")["memory_used"])
        shown = self.post("/api/show", {"name": "tiny"})
        self.assertEqual(shown["model_info"]["gptoss.context_length"], 1024)
        self.assertEqual(shown["capabilities"], ["completion", "tools", "thinking"])

    def test_errors(self):
        self.assertIn("not found", self.post("/api/chat", self.ask(model="other"), 404)["error"])
        self.assertIn("mirostat", self.post("/api/chat", self.ask(options={"mirostat": 1}), 400)["error"])
        self.assertIsInstance(self.get("/api/nothing", 404)["error"], str)
        self.assertIn("moesaic serve -m", self.post("/api/pull", {"model": "other"}, 404)["error"])
        self.assertIn("embeddings", self.post("/api/embed", {"model": "tiny", "input": "a"}, 404)["error"])
        for path, instead in (("/v1/embeddings", "no embeddings"), ("/embedding", "no embeddings"), ("/v1/videos", "text"),
                              ("/v1/uploads", "no files"), (f"{CHAT}/chatcmpl-1", "/v1/responses")):
            self.assertIn(instead, self.post(path, {}, 404)["error"]["message"])

    def test_open_webui_and_continue(self):
        options = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "seed": 7, "num_ctx": 1024, "num_predict": 60,
                   "num_keep": 24, "num_batch": 512, "num_thread": 2, "num_gpu": 1, "use_mmap": True, "use_mlock": False,
                   "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "tfs_z": 1, "repeat_last_n": -1, "stop": ["<stop>"]}
        for body in (self.ask(stream=True, options=options, keep_alive="5m", format="", think="low"),
                     self.ask(stream=True, options=options, keep_alive=1800)):
            self.assertTrue(self.lines("/api/chat", body)[-1]["done"])
        body = {"model": "tiny", "prompt": "Once", "suffix": "", "raw": False, "options": {"num_predict": 20, "stop": []},
                "keep_alive": 1800, "stream": True}
        self.assertTrue(self.lines("/api/generate", body)[-1]["done"])


class AllApis(Case):
    """What holds in the same way wherever a request comes in."""

    LIMIT = {CHAT: {"max_tokens": 2}, RESPONSES: {"max_output_tokens": 2}, MESSAGES: {"max_tokens": 2},
             "/api/chat": {"model": "tiny", "stream": False, "options": {"num_predict": 2}}}

    def send(self, path, messages, status, **more):
        field = "input" if path == RESPONSES else "messages"
        return self.post(path, {field: messages, **self.LIMIT[path], **more}, status)

    def test_bodies_end_with_their_object(self):
        for path, limit in self.LIMIT.items():
            body = json.dumps({"input" if path == RESPONSES else "messages": user("Hi"), **limit}).encode()
            for rest, status in ((b"", 200), (b" \r\n", 200), (b"\0", 400), (b"\0{}", 400), (b"x", 400), (b"{}", 400)):
                self.assertEqual(self.server.call("POST", path, body + rest)[0], status, (path, rest))

    def test_images(self):
        data = "data:image/png;base64,AAAA"
        images = {CHAT: {"content": [{"type": "image_url", "image_url": {"url": data}}]},
                  RESPONSES: {"content": [{"type": "input_image", "image_url": data}]},
                  MESSAGES: {"content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
                  "/api/chat": {"content": "", "images": ["AAAA"]}}
        for path, image in images.items():
            shown = {"role": "user", **image}
            self.send(path, [shown, {"role": "assistant", "content": "A cat."}, *user("Go on.")], 200)
            self.send(path, [*user("Hi"), shown], 200 if path == RESPONSES else 400)  # Responses tells the model

    def test_fields_of_another_api(self):
        for path, field, value in ((MESSAGES, "guided_regex", "a"), (MESSAGES, "response_format", {"type": "json_object"}),
                                   ("/api/chat", "grammar", 'root ::= "a"'), ("/api/chat", "temperature", 0.5),
                                   (CHAT, "think", "high"), (RESPONSES, "output_config", {"effort": "low"})):
            answer = self.send(path, user("Hi"), 400, **{field: value})
            self.assertIn(field, json.dumps(answer))
        tools = [{"type": "function", "function": FUNCTION}]
        self.send(CHAT, user("Hi"), 400, tools=tools, tool_choice="required", guided_regex="a")


class LlamaCpp(Case):
    def test_props_slots_and_models(self):
        props, slots = self.get("/props"), self.get("/slots")
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 1024)
        self.assertEqual((props["total_slots"], len(slots)), (4, 4))
        self.assertEqual([s["is_processing"] for s in slots], [False] * 4)
        self.assertEqual(self.get("/v1/models/tiny")["id"], "tiny")
        self.get("/v1/models/other", 404)

    def test_open_webui(self):
        body = {"stream": True, "model": "tiny", "messages": [{"role": "system", "content": "Be brief."}, *user(SUM)],
                "stream_options": {"include_usage": True}, "temperature": 0.7, "top_p": 0.9, "max_tokens": 100, "seed": 1,
                "frequency_penalty": 0.1, "presence_penalty": 0, "stop": ["<stop>"], "reasoning_effort": "low",
                "logit_bias": {}, "user": "x", "metadata": {"chat_id": "1"}}
        _, text = self.stream(CHAT, body)
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        titles = {"model": "tiny", "messages": user("Title?"), "stream": False, "max_completion_tokens": 50}
        self.assertEqual(self.post(CHAT, titles)["object"], "chat.completion")


class Keys(unittest.TestCase):
    def test_x_api_key(self):
        server = Served("--log", "quiet", env={"MOESAIC_API_KEY": "secret"}).wait_ready()
        try:
            body = {"model": "tiny", "max_tokens": 5, "messages": user("hi")}
            status, answer = server.post(MESSAGES, body)
            self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"))
            self.assertEqual(server.post(MESSAGES, body, {"x-api-key": "wrong"})[0], 401)
            self.assertEqual(server.post(MESSAGES, body, {"x-api-key": "secret"})[0], 200)
            for bearer, key, status in (("other", "secret", 200), ("secret", "other", 200), ("other", "wrong", 401)):
                self.assertEqual(server.post(MESSAGES, body, {"Authorization": f"Bearer {bearer}", "x-api-key": key})[0], status)
            stored = server.post(RESPONSES, {"input": "hi"}, {"Authorization": "Bearer secret"})[1]["id"]
            self.assertEqual(server.call("GET", f"{RESPONSES}/{stored}")[0], 401)
            self.assertEqual(server.call("GET", f"{RESPONSES}/{stored}", None, {"x-api-key": "secret"})[0], 200)
        finally:
            self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
