"""strands-agents: rounds of tool calls and structured output through chat completions, Responses and Anthropic's messages."""

import asyncio
import unittest

from case import MODEL, PERSON, SUM, WEATHER, Case, get_weather
from person import Person
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel


class Chat(Case):
    never_refused = "/"
    kind = OpenAIModel
    context = 4096

    def agent(self, **options):
        address = {"base_url": self.server.url if self.kind is AnthropicModel else self.url, "api_key": "none", "max_retries": 0}
        limit = {"max_tokens": 500} if self.kind is AnthropicModel else {}
        model = self.kind(client_args=address, model_id=MODEL, params={"temperature": 0}, **limit)
        return Agent(model=model, callback_handler=None, **options)

    def test_rounds(self):
        """A question, a call, its result, an answer; and the conversation goes on."""
        async def work():
            agent = self.agent(tools=[tool(get_weather)])
            answers = [str(await agent.invoke_async(text)) for text in (WEATHER, SUM)]
            return answers, [kind for message in agent.messages for part in message["content"] for kind in part]

        answers, parts = asyncio.run(work())
        self.assertIn("Oslo", answers[0])
        self.assertIn("42", answers[1])
        kinds = [kind for kind in parts if kind != "reasoningContent"]
        self.assertEqual(kinds, ["text", "toolUse", "toolResult", "text", "text", "text"])

    def test_stream(self):
        async def work():
            events = [event async for event in self.agent().stream_async(SUM)]
            return "".join(event["data"] for event in events if "data" in event), events[-1]["result"]

        text, result = asyncio.run(work())
        self.assertEqual(text, "17 + 25 = 42")
        self.assertEqual(str(result).strip(), text)
        self.assertEqual(result.stop_reason, "end_turn")

    def test_schema(self):
        result = self.agent()(PERSON, structured_output_model=Person).structured_output
        self.assertIsInstance(result, Person)


class Responses(Chat):
    kind = OpenAIResponsesModel


class Messages(Chat):
    kind = AnthropicModel


if __name__ == "__main__":
    unittest.main()
