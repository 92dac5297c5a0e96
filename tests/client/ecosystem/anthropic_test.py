"""The anthropic package: chat, streams, tools, thinking, counts, errors."""

import unittest

import anthropic
from case import LONG, MODEL, SUM, WEATHER, WEATHER_TOOL, Case

GREEDY = {"temperature": 0}  # the client has no argument for it any more
THINKING = {"type": "enabled", "budget_tokens": 8192}
TOOL = {"name": "get_weather", "description": "Get the weather of a city.",
        "input_schema": WEATHER_TOOL["function"]["parameters"]}


def ask(text):
    return [{"role": "user", "content": text}]


class AnthropicClient(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="none", max_retries=0, timeout=60)

    def create(self, text=SUM, **options):
        options = {"model": MODEL, "max_tokens": 400, "messages": ask(text), "extra_body": GREEDY, **options}
        return self.client.messages.create(**options)

    def test_chat(self):
        message = self.create(system="Be brief.")
        self.assertIn("42", message.content[0].text)
        self.assertEqual((message.type, message.role, message.stop_reason), ("message", "assistant", "end_turn"))
        self.assertGreater(message.usage.output_tokens, 0)

    def test_stream_helper(self):
        whole = self.create(thinking=THINKING)
        with self.client.messages.stream(model=MODEL, max_tokens=400, messages=ask(SUM), extra_body=GREEDY,
                                         thinking=THINKING) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[-1].text)
        self.assertEqual([b.type for b in final.content], ["thinking", "text"])
        self.assertEqual(final.content[0].thinking, whole.content[0].thinking)
        self.assertEqual(final.stop_reason, "end_turn")
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tools(self):
        first = self.create(WEATHER, tools=[TOOL], thinking=THINKING)
        self.assertEqual(first.stop_reason, "tool_use")
        call = first.content[-1]
        self.assertEqual(call.input, {"location": "Oslo"})
        history = [*ask(WEATHER), {"role": "assistant", "content": first.content},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                 "content": '{"temperature": 21, "sky": "sunny"}'}]}]
        self.assertIn("21", self.create(messages=history, tools=[TOOL]).content[-1].text)

    def test_streamed_tools(self):
        with self.client.messages.stream(model=MODEL, max_tokens=400, messages=ask(WEATHER), extra_body=GREEDY,
                                         tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[-1].input, {"location": "Oslo"})

    def test_tool_runner(self):
        """The runner asks for a thread on the server, is refused, and goes on without one."""
        asked = []

        @anthropic.beta_tool
        def get_weather(location: str) -> str:
            """Get the weather of a city."""
            asked.append(location)
            return '{"temperature": 21, "sky": "sunny"}'

        last = self.client.beta.messages.tool_runner(model=MODEL, max_tokens=400, tools=[get_weather], messages=ask(WEATHER),
                                                     extra_body=GREEDY).until_done()
        self.assertEqual(asked, ["Oslo"])
        self.assertIn("21", last.content[-1].text)

    def test_stop_sequence(self):
        message = self.create(stop_sequences=["42"])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", "42"))

    def test_count_tokens_and_models(self):
        count = self.client.messages.count_tokens(model=MODEL, messages=ask(SUM))
        self.assertGreater(count.input_tokens, 20)
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).display_name, MODEL)

    def test_errors(self):
        for error, options in ((anthropic.NotFoundError, {"model": "other"}), (anthropic.BadRequestError, {"text": LONG}),
                               (anthropic.BadRequestError, {"extra_body": {"mcp_servers": [{"url": "x"}]}})):
            with self.assertRaises(error) as caught:
                self.create(**options)
            self.assertEqual(caught.exception.body["type"], "error")


if __name__ == "__main__":
    unittest.main()
