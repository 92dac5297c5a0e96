"""langchain-ollama and langchain-anthropic: the other two protocols, in langgraph's agent."""

import asyncio
import unittest

import ollama
from case import MODEL, PERSON, SUM, WEATHER, Case, get_weather
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langgraph.prebuilt import create_react_agent
from person import NORA, Person


class Chat(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.loop = asyncio.new_event_loop()  # one for all: ChatAnthropic keeps its connections from model to model
        cls.addClassCleanup(cls.loop.close)

    def model(self, **options):
        return ChatOllama(**{"model": MODEL, "base_url": self.server.url, "temperature": 0, "validate_model_on_init": True,
                             **options})

    def test_stream_is_the_whole_answer(self):
        chunks = list(self.model().stream(SUM))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        self.assertEqual(whole.text, self.model().invoke(SUM).text)
        self.assertEqual(whole.text, "17 + 25 = 42")
        self.assertGreater(whole.usage_metadata["output_tokens"], 0)

    def test_schema(self):
        self.assertEqual(self.model().with_structured_output(Person, method="json_schema").invoke(PERSON), NORA)

    def test_agent(self):
        answer = create_react_agent(self.model(), [get_weather]).invoke({"messages": [("user", WEATHER)]})["messages"]
        self.assertEqual([message.type for message in answer], ["human", "ai", "tool", "ai"])
        self.assertIn("Oslo", answer[-1].text)

    def test_streamed_agent(self):
        async def text():
            agent = create_react_agent(self.model(), [get_weather])
            parts = agent.astream({"messages": [("user", WEATHER)]}, stream_mode="messages")
            return "".join([part.text async for part, _ in parts if part.type == "AIMessageChunk"])

        self.assertIn("Oslo", self.loop.run_until_complete(text()))

    def test_cancelled(self):
        async def work():
            async def read():
                async for _ in self.model().astream("Tell me a story."):
                    begun.set()
                    await asyncio.sleep(0)

            begun = asyncio.Event()
            reader = asyncio.create_task(read())
            await begun.wait()
            reader.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await reader

        self.loop.run_until_complete(work())
        self.idle()


class ChatOfMessages(Chat):
    """The same through Anthropic's messages."""

    def model(self, **options):
        return ChatAnthropic(**{"model": MODEL, "base_url": self.server.url, "api_key": "none", "max_retries": 0,
                                "max_tokens": 500, "timeout": 60, **options})

    def test_thinking(self):
        answer = self.model(thinking={"type": "adaptive"}).invoke(SUM)
        self.assertEqual([block["type"] for block in answer.content], ["thinking", "text"])

    def test_tokens(self):
        self.assertGreater(self.model().get_num_tokens_from_messages([HumanMessage(SUM)]), 5)


class Others(Case):
    def test_reasoning(self):
        options = {"model": MODEL, "base_url": self.server.url, "temperature": 0}
        self.assertIn("42", ChatOllama(reasoning=True, **options).invoke(SUM).additional_kwargs["reasoning_content"])
        self.assertNotIn("reasoning_content", ChatOllama(reasoning="low", **options).invoke(SUM).additional_kwargs)

    def test_generate(self):
        text = OllamaLLM(model=MODEL, base_url=self.server.url, temperature=0, format="json").invoke(PERSON)
        self.assertEqual(Person.model_validate_json(text), NORA)

    def test_embeddings(self):
        with self.assertRaisesRegex(ollama.ResponseError, "makes no embeddings"):
            OllamaEmbeddings(model=MODEL, base_url=self.server.url).embed_query("a")


if __name__ == "__main__":
    unittest.main()
