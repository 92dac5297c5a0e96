"""llama-index: OpenAILike, Ollama and Anthropic; and OpenAIResponses, which takes only a model that it knows."""

import asyncio
import unittest

from case import MODEL, PERSON, SUM, WEATHER, Case, get_weather
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from person import Person

KNOWN_MODEL = "gpt-5-mini"


class ChatCompletions(Case):
    never_refused = "/"

    def model(self):
        return OpenAILike(model=MODEL, api_base=self.url, api_key="none", is_chat_model=True, is_function_calling_model=True,
                          context_window=self.context, max_retries=0, temperature=0)

    def test_stream_is_the_whole_answer(self):
        asked = [ChatMessage(role="user", content=SUM)]
        parts = list(self.model().stream_chat(asked))
        self.assertEqual("".join(part.delta or "" for part in parts), "17 + 25 = 42")
        self.assertEqual(self.model().chat(asked).message.content, "17 + 25 = 42")

    def test_schema(self):
        nora = Person(name="Nora", age=34, city="Oslo")
        self.assertEqual(self.model().structured_predict(Person, PromptTemplate(PERSON)), nora)
        self.assertEqual(list(self.model().stream_structured_predict(Person, PromptTemplate(PERSON)))[-1], nora)

    def test_agent(self):
        async def answer():
            return str(await FunctionAgent(tools=[get_weather], llm=self.model(), system_prompt="You help.").run(WEATHER))

        self.assertIn("Oslo", asyncio.run(answer()))


class OllamaChat(ChatCompletions):
    def model(self):
        return Ollama(model=MODEL, base_url=self.server.url, request_timeout=60, context_window=self.context, temperature=0)


class Messages(ChatCompletions):
    def model(self):
        # the model's name is one that the package knows: it asks it for the context's size
        return Anthropic(model="claude-sonnet-4-5", base_url=self.server.url, api_key="none", max_retries=0, max_tokens=300,
                         temperature=0)


class Responses(ChatCompletions):
    options = ("--max-batch", 8, "--name", KNOWN_MODEL)

    def model(self):
        return OpenAIResponses(model=KNOWN_MODEL, api_base=self.url, api_key="none", max_retries=0,
                               additional_kwargs={"extra_body": {"temperature": 0}})


if __name__ == "__main__":
    unittest.main()
