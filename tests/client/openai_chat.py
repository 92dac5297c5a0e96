"""Chat completions."""

import json

import openai
from openai_case import SUM, WEATHER, Case, ask
from served import Served


def joined(chunks, field):
    return "".join(getattr(c.choices[0].delta, field, None) or "" for c in chunks if c.choices)


class Chat(Case):
    def test_whole(self):
        answer = self.chat()
        choice = answer.choices[0]
        self.assertEqual(answer.object, "chat.completion")
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual(choice.message.role, "assistant")
        self.assertIn("42", choice.message.content)
        self.assertTrue(choice.message.reasoning)
        self.assertEqual(choice.message.reasoning, choice.message.reasoning_content)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertGreater(answer.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_stream_is_the_whole_answer(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(joined(chunks, "content"), whole.choices[0].message.content)
        self.assertEqual(joined(chunks, "reasoning_content"), whole.choices[0].message.reasoning)
        self.assertEqual(joined(chunks, "reasoning"), whole.choices[0].message.reasoning)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([c.choices[0].finish_reason for c in chunks[-2:-1]], ["stop"])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_one_chunk_per_token(self):
        text = self.chat(reasoning_effort="low").choices[0].message.content
        chunks = list(self.chat(stream=True, reasoning_effort="low"))
        told = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
        count = self.server.post("/tokenize", {"prompt": text})[1]["count"]
        self.assertEqual(len(told), count)

    def test_without_usage(self):
        self.assertTrue(all(c.usage is None and c.choices for c in self.chat(stream=True)))

    def test_limits(self):
        for name in ("max_tokens", "max_completion_tokens"):
            answer = self.chat(**{name: 3})
            self.assertEqual(answer.choices[0].finish_reason, "length")
            self.assertEqual(answer.usage.completion_tokens, 3)

    def test_stop(self):
        answer = self.chat(stop=["="], reasoning_effort="low")
        self.assertEqual(answer.choices[0].message.content, "17 + 25 ")
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_seed(self):
        options = {"temperature": 1.5, "max_tokens": 40, "messages": ask("Tell me a story.")}
        first, again = self.chat(seed=7, **options), self.chat(seed=7, **options)
        self.assertEqual(first.choices[0].message.content, again.choices[0].message.content)
        others = {self.chat(seed=s, **options).choices[0].message.content for s in range(20, 26)}
        self.assertGreater(len(others), 1)

    def test_n(self):
        options = {"messages": ask("Tell me a story."), "temperature": 1.2, "max_tokens": 60, "seed": 3, "n": 4,
                   "reasoning_effort": "low"}
        whole = self.chat(**options)
        self.assertEqual([c.index for c in whole.choices], [0, 1, 2, 3])
        self.assertGreater(len({c.message.content for c in whole.choices}), 1)
        texts = ["", "", "", ""]
        for chunk in self.chat(stream=True, **options):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [c.message.content for c in whole.choices])

    def test_logit_bias(self):
        token = self.server.post("/tokenize", {"prompt": "4"})[1]["tokens"][0]
        text = self.chat(reasoning_effort="low", logit_bias={str(token): -100}).choices[0].message.content
        self.assertNotIn("4", text)

    def test_logprobs(self):
        answer = self.chat(reasoning_effort="low", logprobs=True, top_logprobs=3)
        entries = answer.choices[0].logprobs.content
        self.assertEqual("".join(e.token for e in entries), answer.choices[0].message.content)
        for entry in entries:
            self.assertEqual(bytes(entry.bytes).decode(), entry.token)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].token, entry.token)  # greedy
            self.assertAlmostEqual(entry.top_logprobs[0].logprob, entry.logprob, places=5)
            self.assertLessEqual(entry.logprob, 0)

    def test_streamed_logprobs(self):
        whole = self.chat(logprobs=True).choices[0].logprobs.content
        parts = [e.token for c in self.chat(logprobs=True, stream=True) if c.choices and c.choices[0].logprobs
                 for e in c.choices[0].logprobs.content]
        self.assertEqual(parts, [e.token for e in whole])

    def test_effort(self):
        low, high = (self.chat(reasoning_effort=e).usage.completion_tokens for e in ("low", "high"))
        self.assertLess(low, high)

    def test_parts_and_system(self):
        parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "17 + 25?"}]
        self.assertEqual(self.chat([{"role": "user", "content": parts}]).choices[0].message.content,
                         self.chat().choices[0].message.content)
        answer = self.chat([{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."},
                            *SUM])
        self.assertGreater(answer.usage.prompt_tokens, self.chat().usage.prompt_tokens)

    def test_empty_content(self):
        self.assertEqual(self.chat(ask(""), max_tokens=4).usage.completion_tokens, 4)


class Tools(Case):
    QUESTION = ask("What is the weather in Paris?")

    def test_round_trip(self):
        answer = self.chat(self.QUESTION, tools=[WEATHER])
        message = answer.choices[0].message
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertIsNone(message.content)
        call = message.tool_calls[0]
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertIn("Paris", json.loads(call.function.arguments).values())
        result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"weather": "sunny", "degrees": 21})}
        final = self.chat([*self.QUESTION, message.model_dump(exclude_none=True), result], tools=[WEATHER])
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertIn("21", final.choices[0].message.content)

    def test_streamed(self):
        whole = self.chat(self.QUESTION, tools=[WEATHER]).choices[0].message.tool_calls[0]
        deltas = []
        for chunk in self.chat(self.QUESTION, tools=[WEATHER], stream=True):
            deltas += chunk.choices[0].delta.tool_calls or []
        self.assertTrue(all(d.index == 0 for d in deltas))
        self.assertTrue(deltas[0].id)
        self.assertEqual((deltas[0].type, deltas[0].function.name), ("function", "get_weather"))
        self.assertEqual("".join(d.function.arguments for d in deltas), whole.function.arguments)
        self.assertTrue(all(d.id is None for d in deltas[1:]))

    def test_choice(self):
        hello = ask("What is 17 + 25?")
        none = self.chat(self.QUESTION, tools=[WEATHER], tool_choice="none").choices[0]
        self.assertIsNone(none.message.tool_calls)
        other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
        for choice, tools in (("required", [WEATHER]), ("required", [WEATHER, other]),
                              ({"type": "function", "function": {"name": "get_weather"}}, [WEATHER, other])):
            answer = self.chat(hello, tools=tools, tool_choice=choice).choices[0]
            if answer.finish_reason == "length":
                continue
            names = [c.function.name for c in answer.message.tool_calls]
            self.assertEqual(len(names), 1, choice)
            json.loads(answer.message.tool_calls[0].function.arguments)
            if choice != "required":
                self.assertEqual(names, ["get_weather"])


class Forms(Case):
    SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}

    def test_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": self.SCHEMA, "strict": True}}
        for temperature in (0, 1.5):
            answer = self.chat(ask("Describe a person."), response_format=form, temperature=temperature,
                               reasoning_effort="low", seed=4)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            value = json.loads(answer.choices[0].message.content)
            self.assertEqual(set(value), {"name", "age"})
            self.assertIsInstance(value["age"], int)

    def test_object(self):
        answer = self.chat(ask("Give me JSON."), response_format={"type": "json_object"}, max_tokens=300)
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_unsupported(self):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "(?<=a)b"}}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format=form)
        self.assertEqual(caught.exception.param, "response_format")
        self.assertIn("pattern", str(caught.exception))


class Errors(Case):
    def refused(self, param, **options):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(**options)
        self.assertEqual(caught.exception.param, param)
        self.assertEqual(caught.exception.type, "invalid_request_error")

    def test_fields(self):
        for param, value in {"temperature": 3, "top_p": 2, "n": 0, "max_tokens": 0, "logit_bias": {"x": 1},
                             "presence_penalty": 5, "stop": ["x" * 600], "reasoning_effort": "extreme", "seed": "x",
                             "tool_choice": "required", "stream_options": 3, "top_logprobs": 2,
                             "response_format": {"type": "nonsense"}, "logprobs": 3}.items():
            with self.subTest(param):
                self.refused(param, **{param: value})

    def test_messages(self):
        self.refused("messages", messages=[{"role": "robot", "content": "x"}])
        self.refused("messages", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
        self.refused("messages", messages=[{"role": "tool", "content": "x", "tool_call_id": "nobody"}])

    def test_context(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(ask("word " * 3000))
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertIn("maximum context length is 1024 tokens", str(caught.exception))

    def test_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="gpt-9", messages=SUM)
        self.assertEqual(caught.exception.code, "model_not_found")


class Cancel(Case):
    def test_mid_stream(self):
        """In a context that takes seconds to fill: the answer has no other end."""
        server = Served("--log", "quiet", context=16384).wait_ready()
        self.addCleanup(server.stop)
        before = server.metric("moesaic:kv_pages_used")
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        stream = client.chat.completions.create(model="tiny", messages=ask("Tell me a long story."), stream=True, temperature=1,
                                                logit_bias={str(t): -100 for t in self.stops()})
        for _, chunk in zip(range(5), stream):
            self.assertIsNotNone(chunk)
        self.assertEqual(server.metric("vllm:num_requests_running"), 1)
        stream.close()
        server.until("vllm:request_success_total", 1, label='finished_reason="abort"')
        server.until("vllm:num_requests_running", 0)
        self.assertEqual(server.metric("moesaic:kv_pages_used"), before)

    def stops(self):
        names = "<|return|><|call|><|endoftext|>"
        return self.server.post("/tokenize", {"prompt": names, "parse_special": True})[1]["tokens"]
