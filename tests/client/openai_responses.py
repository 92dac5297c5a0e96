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
        self.assertFalse(response.store)

    def test_schema(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                  "additionalProperties": False}
        response = self.respond(text={"format": {"type": "json_schema", "name": "sum", "schema": schema}})
        self.assertEqual(list(json.loads(response.output_text)), ["sum"])

    def test_context(self):
        with self.assertRaises(openai.BadRequestError):
            self.respond("word " * 3000)
        events = list(self.respond("word " * 3000, stream=True))
        self.assertEqual(events[-1].type, "response.failed")
        self.assertEqual(events[-1].response.error.code, "context_length_exceeded")

    def test_refused(self):
        for options in ({"previous_response_id": "resp_1"}, {"background": True}, {"input": []},
                        {"input": [{"type": "item_reference", "id": "x"}]}):
            with self.subTest(options), self.assertRaises(openai.BadRequestError):
                self.respond(**options)
