"""pydantic-ai: its models for chat completions and for Responses."""

import asyncio
import unittest

import pydantic_ai
from case import LONG, MODEL, PERSON, PRODUCT, WEATHER, Case, get_weather
from person import NORA, Person
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Chat(Case):
    model_class = OpenAIChatModel

    def agent(self, **options):
        model = self.model_class(MODEL, provider=OpenAIProvider(base_url=self.url, api_key="none"))
        options.setdefault("model_settings", {"temperature": 0})
        return Agent(model, **options)

    def run_agent(self, agent, text, **options):
        return asyncio.run(agent.run(text, **options))

    def test_answer(self):
        result = self.run_agent(self.agent(), PRODUCT)
        self.assertEqual(result.output, "47 x 36 = 1692")
        thinking = [part for part in result.response.parts if part.part_kind == "thinking"]
        self.assertIn("1692", thinking[0].content or " ".join(thinking[0].provider_details["raw_content"]))
        usage = result.usage if not callable(result.usage) else result.usage()
        self.assertGreater(usage.output_tokens, 20)

    def test_two_turns(self):
        first = self.run_agent(self.agent(), PRODUCT)
        second = self.run_agent(self.agent(), "What is 17 + 25?", message_history=first.all_messages())
        self.assertEqual(second.output, "17 + 25 = 42")

    def test_tool(self):
        agent = self.agent(tools=[get_weather])
        result = self.run_agent(agent, WEATHER)
        self.assertEqual(result.output, "It is sunny in Oslo, at 21 degrees.")
        kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
        self.assertIn("tool-call", kinds)
        self.assertIn("tool-return", kinds)

    def test_structured_output(self):
        for kind in (NativeOutput, ToolOutput, PromptedOutput):
            with self.subTest(kind.__name__):
                self.assertEqual(self.run_agent(self.agent(output_type=kind(Person)), PERSON).output, NORA)

    def test_streamed_text(self):
        async def work():
            async with self.agent().run_stream(PRODUCT) as result:
                return [text async for text in result.stream_text(delta=True, debounce_by=None)]

        parts = asyncio.run(work())
        self.assertGreater(len(parts), 5)
        self.assertEqual("".join(parts), "47 x 36 = 1692")

    def test_streamed_output(self):
        async def work():
            async with self.agent(output_type=NativeOutput(Person)).run_stream(PERSON) as result:
                return [value async for value in result.stream_output(debounce_by=None)]

        self.assertEqual(asyncio.run(work())[-1], NORA)

    def test_streamed_tool(self):
        async def work():
            async with self.agent(tools=[get_weather]).run_stream(WEATHER) as result:
                return await result.get_output()

        self.assertEqual(asyncio.run(work()), "It is sunny in Oslo, at 21 degrees.")

    def test_effort(self):
        setting = "openai_reasoning_effort"
        low, high = (self.run_agent(self.agent(model_settings={"temperature": 0, setting: e}), PRODUCT).response.usage.output_tokens
                     for e in ("low", "high"))
        self.assertLess(low, high)

    def test_context_error(self):
        with self.assertRaises(pydantic_ai.exceptions.ModelHTTPError) as caught:
            self.run_agent(self.agent(), LONG)
        self.assertEqual(caught.exception.status_code, 400)
        self.assertEqual(caught.exception.body["code"], "context_length_exceeded")


class Responses(Chat):
    model_class = OpenAIResponsesModel


if __name__ == "__main__":
    unittest.main()
