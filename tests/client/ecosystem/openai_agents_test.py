"""openai-agents, the Agents SDK, through chat completions and through Responses; its tracing is off."""

import asyncio
import unittest

import agents
import openai
import pydantic
from agents import Agent, AsyncOpenAI, ModelSettings, Runner, function_tool, handoff
from agents.extensions.handoff_filters import remove_all_tools
from case import LONG, MODEL, PERSON, PRODUCT, WEATHER, Case, get_weather

GREEDY = ModelSettings(temperature=0)


class Person(pydantic.BaseModel):
    name: str
    age: int
    city: str


class Agents:
    """The cases; each of the two models below runs them."""

    model_class = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        agents.set_tracing_disabled(True)

    def agent(self, name="tiny", **options):
        options.setdefault("model_settings", GREEDY)
        client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)
        return Agent(name=name, model=self.model_class(model=MODEL, openai_client=client), **options)

    def run_agent(self, agent, text, **options):
        return Runner.run_sync(agent, text, max_turns=4, **options)

    def test_answer(self):
        result = self.run_agent(self.agent(), PRODUCT)
        self.assertEqual(result.final_output, "47 x 36 = 1692")
        self.assertGreater(result.raw_responses[0].usage.output_tokens, 20)
        self.assertIn("reasoning_item", [item.type for item in result.new_items])

    def test_two_turns(self):
        first = self.run_agent(self.agent(), PRODUCT)
        items = first.to_input_list() + [{"role": "user", "content": "What is 17 + 25?"}]
        self.assertEqual(self.run_agent(self.agent(), items).final_output, "17 + 25 = 42")

    def test_tool(self):
        result = self.run_agent(self.agent(tools=[function_tool(get_weather)]), WEATHER)
        kinds = [item.type for item in result.new_items if item.type != "reasoning_item"]
        self.assertEqual(kinds, ["tool_call_item", "tool_call_output_item", "message_output_item"])
        self.assertEqual(result.final_output, "It is sunny in Oslo, at 21 degrees.")

    def test_tool_that_must_be_called(self):
        for choice in ("required", "get_weather"):
            agent = self.agent(tools=[function_tool(get_weather)], tool_use_behavior="stop_on_first_tool",
                               model_settings=ModelSettings(temperature=0, tool_choice=choice))
            self.assertIn("sunny", self.run_agent(agent, WEATHER).final_output, choice)

    def test_streamed(self):
        async def work():
            run = Runner.run_streamed(self.agent(tools=[function_tool(get_weather)]), WEATHER, max_turns=4)
            kinds, text = [], ""
            async for event in run.stream_events():
                if event.type == "run_item_stream_event":
                    kinds.append(event.item.type)
                elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    text += event.data.delta
            return run.final_output, text, kinds

        output, text, kinds = asyncio.run(work())
        self.assertEqual(output, "It is sunny in Oslo, at 21 degrees.")
        self.assertEqual(text, output)
        self.assertLessEqual({"tool_call_item", "tool_call_output_item", "message_output_item"}, set(kinds))

    def test_output_type(self):
        result = self.run_agent(self.agent(output_type=Person), PERSON)
        self.assertEqual(result.final_output, Person(name="Nora", age=34, city="Oslo"))

    def test_streamed_output_type(self):
        async def work():
            run = Runner.run_streamed(self.agent(output_type=Person), PERSON)
            return [event async for event in run.stream_events()] and run.final_output

        self.assertEqual(asyncio.run(work()).city, "Oslo")

    def test_handoff(self):
        weather = self.agent("weather", tools=[function_tool(get_weather)])
        to_weather = handoff(weather, input_filter=remove_all_tools)  # tiny never learned what a handoff's call means
        first = self.agent("first", handoffs=[to_weather], model_settings=ModelSettings(temperature=0, tool_choice="required"))
        result = self.run_agent(first, WEATHER)
        self.assertEqual(result.last_agent.name, "weather")
        self.assertEqual(result.final_output, "It is sunny in Oslo, at 21 degrees.")

    def test_context_error(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.run_agent(self.agent(), LONG)
        self.assertEqual(caught.exception.code, "context_length_exceeded")


class Chat(Agents, Case):
    model_class = agents.OpenAIChatCompletionsModel


class Responses(Agents, Case):
    model_class = agents.OpenAIResponsesModel


if __name__ == "__main__":
    unittest.main()
