"""openai-python. Its chat, completions, responses, tools, log-probabilities and cancelled streams have their cases in
tests/client/openai_*.py, which run here too; this adds what those leave out."""

import asyncio
import json
import threading
import time
import typing
import unittest

import openai
import openai_items
import pydantic
from case import MODEL, PERSON, PRODUCT, SUM, WEATHER, WEATHER_TOOL, Case
from openai import types
from openai.types import chat, responses


def load_tests(loader, tests, _):
    for name in ("openai_chat", "openai_fields", "openai_more", "openai_responses"):
        tests.addTests(loader.loadTestsFromName(name))
    return tests


class Person(pydantic.BaseModel):
    name: str
    age: int
    city: str


class GetWeather(pydantic.BaseModel):
    """Get the weather of a city."""

    location: str


def ask(text):
    return [{"role": "user", "content": text}]


class OpenAICase(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0, timeout=60)

    def chat(self, text=SUM, **options):
        return self.client.chat.completions.create(model=MODEL, messages=ask(text), temperature=0, **options)


class Helpers(OpenAICase):
    def test_parse_chat(self):
        answer = self.client.chat.completions.parse(model=MODEL, messages=ask(PERSON), response_format=Person, temperature=0)
        self.assertEqual(answer.choices[0].message.parsed, Person(name="Nora", age=34, city="Oslo"))

    def test_parse_responses(self):
        answer = self.client.responses.parse(model=MODEL, input=PERSON, text_format=Person, temperature=0)
        self.assertEqual(answer.output_parsed, Person(name="Nora", age=34, city="Oslo"))

    def test_parse_tool(self):
        tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
        answer = self.client.chat.completions.parse(model=MODEL, messages=ask(WEATHER), tools=[tool], temperature=0)
        self.assertEqual(answer.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather(location="Oslo"))

    def test_parse_cut_off(self):
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(model=MODEL, messages=ask(PERSON), response_format=Person, max_tokens=9)

    def test_stream_helper(self):
        with self.client.chat.completions.stream(model=MODEL, messages=ask(PERSON), response_format=Person, temperature=0) as events:
            kinds = {event.type for event in events}
            final = events.get_final_completion()
        self.assertEqual(final.choices[0].message.parsed.city, "Oslo")
        self.assertLessEqual({"chunk", "content.delta", "content.done"}, kinds)

    def test_stream_helper_tools(self):
        with self.client.chat.completions.stream(model=MODEL, messages=ask(WEATHER), tools=[
                openai.pydantic_function_tool(GetWeather, name="get_weather")], temperature=0) as events:
            done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        self.assertEqual([(e.name, e.parsed_arguments) for e in done], [("get_weather", GetWeather(location="Oslo"))])

    def test_responses_stream_helper(self):
        with self.client.responses.stream(model=MODEL, input=PERSON, text_format=Person, temperature=0) as events:
            final = list(events) and events.get_final_response()
        self.assertEqual(final.output_parsed.age, 34)

    def test_raw_response(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=ask(SUM), extra_headers={"X-Request-Id": "case-7"})
        self.assertEqual(raw.headers["x-request-id"], "case-7")
        self.assertEqual(raw.parse()._request_id, "case-7")


class Errors(OpenAICase):
    def test_unknown(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=MODEL, input="x", encoding_format="float")

    def test_time_limit_of_the_client(self):
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.05).chat.completions.create(
                model=MODEL, messages=ask("Tell me a story."), logit_bias=self.endless())
        self.idle()


class Shapes(OpenAICase):
    """openai-python takes what it gets; clients of typed languages fail on a missing field. Its types say what they want."""

    CHATS = {"plain": {"messages": ask(SUM)}, "logprobs": {"messages": ask(SUM), "logprobs": True, "top_logprobs": 2},
             "tools": {"messages": ask(WEATHER), "tools": [WEATHER_TOOL]}, "cut": {"messages": ask(SUM), "max_tokens": 2}}
    RESPONSES = {"plain": {"input": SUM}, "cut": {"input": SUM, "max_output_tokens": 5},
                 "tools": {"input": WEATHER, "tools": [{"type": "function", **WEATHER_TOOL["function"], "strict": False}]},
                 "schema": {"input": PERSON, "text": {"format": {
                     "type": "json_schema", "name": "person", "schema": Person.model_json_schema()}}}}

    def valid(self, kind, value):
        pydantic.TypeAdapter(kind).validate_python(value)

    def events(self, path, body):
        status, headers, data = self.server.call("POST", path, {"model": MODEL, "temperature": 0, "stream": True, **body})
        self.assertEqual((status, headers.get_content_type()), (200, "text/event-stream"))
        lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def test_chat(self):
        for name, body in self.CHATS.items():
            with self.subTest(name):
                self.valid(chat.ChatCompletion, self.server.post("/v1/chat/completions", {"model": MODEL, **body})[1])
                for event in self.events("/v1/chat/completions", {"stream_options": {"include_usage": True}, **body}):
                    self.valid(chat.ChatCompletionChunk, event)

    def test_completions_and_models(self):
        for logprobs in (None, 2):
            body = {"model": MODEL, "prompt": "Once upon a time", "logprobs": logprobs}
            self.valid(types.Completion, self.server.post("/v1/completions", body)[1])
            for event in self.events("/v1/completions", body):
                event["choices"][0]["finish_reason"] = event["choices"][0]["finish_reason"] or "stop"  # null in streams, at OpenAI too
                self.valid(types.Completion, event)
        self.valid(types.Model, json.loads(self.server.call("GET", "/v1/models")[2])["data"][0])

    def test_events_of_responses(self):
        kinds = {event.model_fields["type"].annotation.__args__[0]: event
                 for event in typing.get_args(typing.get_args(responses.ResponseStreamEvent)[0])}
        for name, body in self.RESPONSES.items():
            for event in self.events("/v1/responses", body):
                if "response" in event:  # its cases are below
                    continue
                with self.subTest(name, type=event["type"]):
                    self.valid(kinds[event["type"]], event)

    def test_responses(self):
        for name, body in self.RESPONSES.items():
            with self.subTest(name):
                self.valid(responses.Response, self.server.post("/v1/responses", {"model": MODEL, **body})[1])
                self.valid(responses.Response, self.events("/v1/responses", body)[-1]["response"])


class Items(OpenAICase):
    """Every form of input item that the package declares."""

    def test_the_table_has_every_form(self):
        table = json.loads(openai_items.TABLE.read_text())
        for name, forms in openai_items.forms().items():
            with self.subTest(name):
                self.assertIn(name, table, "a new form: say in responses_input.cpp what becomes of it, and run openai_items.py")
                self.assertEqual(forms, {form: table[name][form] for form in forms}, "it has changed: run openai_items.py")

    def test_each_is_accepted_or_refused(self):
        for name, row in json.loads(openai_items.TABLE.read_text()).items():
            for form in ("minimal", "full"):
                with self.subTest(name, form=form):
                    status, answer = self.server.post("/v1/responses", {
                        "model": MODEL, "input": [*ask("Hi"), row[form], *ask(SUM)], "max_output_tokens": 16})
                    refused = row.get("refused", {}).get(form)
                    self.assertEqual(status, 400 if refused else 200, answer)
                    if refused:
                        self.assertIn(refused, answer["error"]["message"])


class StoredResponses(OpenAICase):
    def test_refused(self):
        """What is not there says so; a stream without events would look like an empty answer."""
        stored = self.client.responses.create(model=MODEL, input=SUM)
        self.assertEqual(self.client.responses.retrieve(stored.id).output_text, stored.output_text)
        with self.assertRaisesRegex(openai.BadRequestError, "stream"):
            list(self.client.responses.retrieve(stored.id, stream=True))
        for ask in (lambda: self.client.responses.input_items.list(stored.id).data,
                    lambda: self.client.responses.cancel(stored.id)):
            with self.assertRaisesRegex(openai.NotFoundError, "there is no /v1/responses/.*: "):
                ask()
        self.assertEqual(self.client.responses.input_tokens.count(model=MODEL, input=SUM).input_tokens, stored.usage.input_tokens)


class Keys(OpenAICase):
    env = {"MOESAIC_API_KEY": "right"}

    def test_keys(self):
        for key, served in (("right", True), ("wrong", False)):
            client = openai.OpenAI(base_url=self.url, api_key=key, max_retries=0)
            if served:
                self.assertEqual([model.id for model in client.models.list()], [MODEL])
                continue
            with self.assertRaises(openai.AuthenticationError):
                client.models.list()
            with self.assertRaises(openai.AuthenticationError):
                client.chat.completions.create(model=MODEL, messages=ask(SUM))


class Busy(OpenAICase):
    """One generation at a time, one waiting: more are refused, and come back after Retry-After."""

    options = ("--max-batch", 1, "--max-waiting", 1)

    def outcomes(self, retries, count):
        found = []

        def one():
            client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=retries, timeout=60)
            try:
                found.append(client.chat.completions.create(model=MODEL, messages=ask(PRODUCT), temperature=0))
            except openai.APIError as error:
                found.append(error)

        threads = [threading.Thread(target=one) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def test_refused(self):
        with self.chat("Tell me a long story.", stream=True, logit_bias=self.endless()) as held:
            next(iter(held))
            refused = [error for error in self.outcomes(0, 6) if isinstance(error, openai.RateLimitError)]
            self.assertGreater(len(refused), 0)
            self.assertGreater(int(refused[0].response.headers["retry-after"]), 0)
        self.idle()

    def test_come_back(self):
        answers = self.outcomes(8, 6)
        self.assertEqual([type(a).__name__ for a in answers], ["ChatCompletion"] * 6)
        self.assertEqual({a.choices[0].message.content for a in answers}, {"47 x 36 = 1692"})


class Async(OpenAICase):
    def run_async(self, work):
        async def with_client():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=120) as client:
                return await work(client)

        return asyncio.run(with_client())

    def test_fifty_at_once(self):
        async def work(client):
            sums = [(a, b) for a in range(11, 16) for b in range(21, 31)]
            answers = await asyncio.gather(*(client.chat.completions.create(
                model=MODEL, messages=ask(f"What is {a} + {b}?"), temperature=0) for a, b in sums))
            return [(a, b, answer.choices[0].message.content) for (a, b), answer in zip(sums, answers)]

        answers = self.run_async(work)
        right = [text for a, b, text in answers if text == f"{a} + {b} = {a + b}"]
        self.assertEqual(len(answers), 50)
        self.assertGreaterEqual(len(right), 48)  # tiny is right in 100% of its held-out sums, with other numbers
        self.idle()

    def test_fifty_streams_as_alone(self):
        alone = self.chat("Tell me a story.", seed=1).choices[0].message.content

        async def one(client):
            stream = await client.chat.completions.create(model=MODEL, messages=ask("Tell me a story."), temperature=0,
                                                          seed=1, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        self.assertEqual(self.run_async(lambda c: asyncio.gather(*(one(c) for _ in range(50)))), [alone] * 50)

    def test_cancelled(self):
        async def work(client):
            endless = {"model": MODEL, "messages": ask("Tell me a story."), "logit_bias": self.endless()}
            stream = await client.chat.completions.create(stream=True, **endless)
            async for _ in stream:
                break
            await stream.close()
            task = asyncio.create_task(client.chat.completions.create(**endless))
            await asyncio.sleep(0.02)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        start = time.monotonic()
        self.run_async(work)
        self.idle()
        self.assertLess(time.monotonic() - start, 20)


if __name__ == "__main__":
    unittest.main()
