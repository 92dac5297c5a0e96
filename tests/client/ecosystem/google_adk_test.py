"""google-adk: an agent of LiteLlm's models, whole and streamed, with a tool and with a schema."""

import asyncio
import json
import unittest

from case import MODEL, PERSON, SUM, WEATHER, Case, get_weather
from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int
    city: str


class Adk(Case):
    never_refused = "/"

    def events(self, text, mode=StreamingMode.NONE, provider="openai", **options):
        async def work():
            base = self.server.url if provider == "ollama_chat" else self.url
            model = LiteLlm(model=f"{provider}/{MODEL}", api_base=base, api_key="none", temperature=0)
            runner = InMemoryRunner(agent=Agent(name="helper", model=model, **options), app_name="case")
            session = await runner.session_service.create_session(app_name="case", user_id="user")
            asked = types.Content(role="user", parts=[types.Part(text=text)])
            found = [event async for event in runner.run_async(user_id="user", session_id=session.id, new_message=asked,
                                                               run_config=RunConfig(streaming_mode=mode))]
            await runner.close()
            return found

        return asyncio.run(work())

    def text(self, event):
        return "".join(part.text for part in event.content.parts if part.text and not part.thought)

    def test_stream_is_the_whole_answer(self):
        whole = self.events(SUM)
        parts = self.events(SUM, StreamingMode.SSE)
        self.assertEqual(self.text(whole[-1]), self.text(parts[-1]))
        self.assertIn("42", self.text(whole[-1]))
        self.assertEqual("".join(self.text(part) for part in parts if part.partial), self.text(parts[-1]))

    def test_call(self):
        for provider in ("openai", "hosted_vllm", "ollama_chat"):
            for mode in (StreamingMode.NONE, StreamingMode.SSE):
                with self.subTest(provider=provider, mode=mode):
                    events = self.events(WEATHER, mode, provider, tools=[get_weather])
                    calls = [call for event in events if not event.partial for call in event.get_function_calls()]
                    self.assertEqual([call.name for call in calls], ["get_weather"])
                    self.assertEqual(list(calls[0].args), ["location"])
                    self.assertTrue(self.text(events[-1]))

    def test_schema(self):
        events = self.events(PERSON, output_schema=Person)
        self.assertEqual(json.loads(self.text(events[-1])), {"name": "Nora", "age": 34, "city": "Oslo"})


if __name__ == "__main__":
    unittest.main()
