"""agno: an agent through each of its models that speak one of the server's protocols."""

import unittest

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.ollama import Ollama
from agno.models.openai import OpenAIChat, OpenAIResponses
from agno.models.openai.like import OpenAILike
from agno.models.vllm import VLLM
from case import MODEL, PERSON, SUM, WEATHER, Case, get_weather
from person import Person


class Agents(Case):
    never_refused = "/"

    def models(self):
        """One of each kind, in a subtest of its own."""
        openai = {"id": MODEL, "base_url": self.url, "api_key": "none", "temperature": 0}
        for model in (OpenAIChat(**openai), OpenAILike(**openai), OpenAIResponses(**openai), VLLM(**openai),
                      Ollama(id=MODEL, host=self.server.url, options={"temperature": 0}),
                      Claude(id=MODEL, api_key="none", client_params={"base_url": self.server.url}, max_tokens=500,
                             request_params={"extra_body": {"temperature": 0}})):
            with self.subTest(type(model).__name__):
                yield model

    def test_run(self):
        for model in self.models():
            self.assertEqual(Agent(model=model, telemetry=False).run(SUM).content, "17 + 25 = 42")

    def test_tools(self):
        for model in self.models():
            answer = Agent(model=model, tools=[get_weather], telemetry=False).run(WEATHER)
            self.assertEqual([call.tool_name for call in answer.tools], ["get_weather"])
            self.assertIn("Oslo", answer.content)

    def test_stream(self):
        for model in self.models():
            events = list(Agent(model=model, tools=[get_weather], telemetry=False).run(WEATHER, stream=True, stream_events=True))
            kinds = [event.event for event in events]
            for earlier, later in zip(("ToolCallStarted", "ToolCallCompleted", "RunContent"),
                                      ("ToolCallCompleted", "RunContent", "RunCompleted")):
                self.assertLess(kinds.index(earlier), len(kinds) - 1 - kinds[::-1].index(later))
            text = "".join(event.content or "" for event in events if event.event == "RunContent")
            self.assertEqual(text, events[-1].content)

    def test_schema(self):
        for model in self.models():
            answer = Agent(model=model, output_schema=Person, telemetry=False).run(PERSON)
            self.assertEqual(answer.content, Person(name="Nora", age=34, city="Oslo"))


if __name__ == "__main__":
    unittest.main()
