"""Responses."""

import json

import openai
from openai_case import Case

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Gets the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


class Responses(Case):
    def respond(self, input="What is 17 + 25?", **options):
        return self.client.responses.create(model="tiny", input=input, temperature=0, **options)

    def test_whole(self):
        response = self.respond()
        self.assertEqual((response.object, response.status), ("response", "completed"))
        self.assertIn("42", response.output_text)
        self.assertEqual([item.type for item in response.output], ["reasoning", "message"])
        self.assertEqual(response.output[0].content[0].type, "reasoning_text")
        usage = response.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)

    def test_stream(self):
        whole = self.respond()
        events = list(self.respond(stream=True))
        types = [e.type for e in events]
        self.assertEqual(types[:2], ["response.created", "response.in_progress"])
        self.assertEqual(types[-1], "response.completed")
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        reasoning = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
        self.assertEqual(reasoning, whole.output[0].content[0].text)
        done = [e.item.type for e in events if e.type == "response.output_item.done"]
        self.assertEqual(done, ["reasoning", "message"])
        self.assertEqual(events[-1].response.output_text, whole.output_text)

    def test_stored(self):
        first = self.respond("My name is Nora. What is 17 + 25?")
        second = self.respond("And 47 x 36?", previous_response_id=first.id)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_references(self):
        question, more = "What is 17 + 25?", {"role": "user", "content": "And 47 x 36?"}
        first = self.respond(question)
        asked = {"role": "user", "content": question}
        named = [asked, *({"type": "item_reference", "id": item.id} for item in first.output), more]
        whole = [asked, *(item.model_dump(exclude_none=True) for item in first.output), more]
        self.assertEqual(self.respond(named).usage.input_tokens, self.respond(whole).usage.input_tokens)
        unstored = self.respond(question, store=False)
        with self.assertRaisesRegex(openai.BadRequestError, unstored.output[-1].id + ".*send the item itself"):
            self.respond([asked, {"type": "item_reference", "id": unstored.output[-1].id}, more])

    def test_helper(self):
        with self.client.responses.stream(model="tiny", input="What is 17 + 25?", temperature=0) as stream:
            for _ in stream:
                pass
            self.assertIn("42", stream.get_final_response().output_text)

    def test_tools_round_trip(self):
        question = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = self.respond(question, tools=[WEATHER, {"type": "web_search"}])
        call = first.output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertIn("Paris", json.loads(call.arguments).values())
        items = [*question, *(item.model_dump(exclude_none=True) for item in first.output),
                 {"type": "function_call_output", "call_id": call.call_id,
                  "output": json.dumps({"weather": "sunny", "degrees": 21})}]
        self.assertIn("21", self.respond(items, tools=[WEATHER]).output_text)

    def test_streamed_call(self):
        events = list(self.respond("What is the weather in Paris?", tools=[WEATHER], stream=True))
        arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
        item = [e.item for e in events if e.type == "response.output_item.done"][-1]
        self.assertEqual((item.type, item.name, item.arguments), ("function_call", "get_weather", arguments))

    def test_cut(self):
        response = self.respond(max_output_tokens=5)
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_instructions_and_ignored(self):
        response = self.respond(instructions="Be brief.", store=True, parallel_tool_calls=False, include=[],
                                prompt_cache_key="x", reasoning={"effort": "low", "summary": "auto"})
        self.assertEqual(response.status, "completed")
        self.assertTrue(response.store)

    def test_schema(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                  "additionalProperties": False}
        response = self.respond(text={"format": {"type": "json_schema", "name": "sum", "schema": schema}})
        self.assertEqual(list(json.loads(response.output_text)), ["sum"])

    def test_logprobs(self):
        options = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
        part = self.respond(**options).output[-1].content[0]
        self.assertEqual("".join(one.token for one in part.logprobs), part.text)
        for one in part.logprobs:
            self.assertEqual(one.top_logprobs[0].logprob, one.logprob)
            self.assertEqual(len(one.top_logprobs), 2)
        events = list(self.respond(stream=True, **options))
        streamed = [one for e in events if e.type == "response.output_text.delta" for one in e.logprobs]
        self.assertEqual([one.logprob for one in streamed], [one.logprob for one in part.logprobs])
        self.assertEqual(self.respond().output[-1].content[0].logprobs, [])

    def test_reasoning_comes_back_encrypted(self):
        first = self.respond(include=["reasoning.encrypted_content"])
        self.assertTrue(first.output[0].encrypted_content)
        history = [{"role": "user", "content": "What is 17 + 25?"}]
        sealed = {"type": "reasoning", "summary": [], "encrypted_content": first.output[0].encrypted_content}
        plain = {"type": "reasoning", "summary": [], "content": [c.model_dump() for c in first.output[0].content]}
        counts = [self.respond([*history, *items, {"role": "user", "content": "Why?"}]).usage.input_tokens
                  for items in ([sealed], [plain], [])]
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(counts[0], counts[2])

    def test_usage(self):
        details = self.respond("A prompt of its own, long enough for a page of the cache.").usage.input_tokens_details
        self.assertEqual(details.cached_tokens % 32, 0)
        self.assertGreater(details.cached_tokens + details.cache_write_tokens, 0)

    def test_allowed_tools(self):
        other = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
        call = self.respond("What is the weather in Paris?", tools=[WEATHER, other], tool_choice=choice).output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "get_time"))

    def test_codex_history(self):
        items = [{"role": "user", "content": [{"type": "input_text", "text": "What is 17 + 25?"},
                                              {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
                 {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
                 {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
                 {"type": "local_shell_call", "call_id": "c2", "status": "completed",
                  "action": {"type": "exec", "command": ["ls"]}},
                 {"type": "function_call_output", "call_id": "c2", "output": "a.txt"},
                 {"type": "web_search_call", "id": "w", "status": "completed",
                  "action": {"type": "search", "query": "tiles"}},
                 {"type": "compaction", "encrypted_content": "gAAAA"},
                 {"role": "user", "content": "What is 17 + 25?"}]
        tools = [WEATHER, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
                 {"type": "local_shell"}, {"type": "web_search"}]
        self.assertEqual(self.respond(items, tools=tools, max_output_tokens=20).usage.output_tokens, 20)

    def test_context(self):
        with self.assertRaisesRegex(openai.BadRequestError, "maximum context length is 1024 tokens"):
            self.respond("word " * 3000)
        events = list(self.respond("word " * 3000, stream=True))
        self.assertEqual(events[-1].type, "response.failed")
        self.assertEqual(events[-1].response.error.code, "context_length_exceeded")

    def test_refused(self):
        for options in ({"previous_response_id": "resp_1"}, {"background": True}, {"input": []},
                        {"input": [{"type": "item_reference", "id": "x"}]}):
            with self.subTest(options), self.assertRaises(openai.BadRequestError):
                self.respond(**options)
