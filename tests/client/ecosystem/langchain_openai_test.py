"""langchain-openai's ChatOpenAI, through chat completions and through Responses."""

import asyncio
import unittest

import openai
from case import LONG, MODEL, PERSON, PRODUCT, SUM, WEATHER, Case, get_weather
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from person import NORA, Person


class Chat(Case):
    responses = False

    def model(self, **options):
        options = {"temperature": 0, "max_retries": 0, "timeout": 60, "use_responses_api": self.responses, **options}
        return ChatOpenAI(model=MODEL, base_url=self.url, api_key="none", **options)

    def test_invoke(self):
        answer = self.model().invoke(PRODUCT)
        self.assertEqual(answer.text, "47 x 36 = 1692")
        usage = answer.usage_metadata
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        self.assertGreater(usage["output_token_details"]["reasoning"], 0)

    def test_stream(self):
        chunks = list(self.model(stream_usage=True).stream(PRODUCT))
        self.assertEqual("".join(chunk.text for chunk in chunks), "47 x 36 = 1692")
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        self.assertEqual(whole.usage_metadata, self.model().invoke(PRODUCT).usage_metadata | {
            "input_token_details": whole.usage_metadata["input_token_details"]})

    def test_async_stream(self):
        async def text():
            return "".join([chunk.text async for chunk in self.model().astream(SUM)])

        self.assertEqual(asyncio.run(text()), "17 + 25 = 42")

    def test_batch(self):
        answers = self.model().batch([f"What is {a} + 25?" for a in range(17, 27)])
        self.assertEqual([a.text for a in answers], [f"{a} + 25 = {a + 25}" for a in range(17, 27)])

    def test_chain(self):
        chain = ChatPromptTemplate.from_messages([("system", "You are a calculator."), ("human", "What is {a} x {b}?")])
        self.assertIn("1692", (chain | self.model() | StrOutputParser()).invoke({"a": 47, "b": 36}))

    def test_tools(self):
        model = self.model().bind_tools([tool(get_weather)])
        messages = [HumanMessage(WEATHER)]
        messages.append(model.invoke(messages))
        call = messages[-1].tool_calls[0]
        self.assertEqual((call["name"], call["args"]), ("get_weather", {"location": "Oslo"}))
        messages.append(ToolMessage(get_weather("Oslo"), tool_call_id=call["id"]))
        self.assertEqual(model.invoke(messages).text, "It is sunny in Oslo, at 21 degrees.")

    def test_tool_choice(self):
        for choice in ("any", "get_weather", True):
            call = self.model().bind_tools([tool(get_weather)], tool_choice=choice).invoke(WEATHER).tool_calls[0]
            self.assertEqual(call["args"], {"location": "Oslo"}, choice)
        strict = self.model().bind_tools([tool(get_weather)], strict=True, parallel_tool_calls=False)
        self.assertEqual(strict.invoke(WEATHER).tool_calls[0]["args"], {"location": "Oslo"})

    def test_streamed_tools(self):
        whole = None
        for chunk in self.model().bind_tools([tool(get_weather)]).stream(WEATHER):
            whole = chunk if whole is None else whole + chunk
        self.assertEqual(whole.tool_calls[0]["args"], {"location": "Oslo"})

    def test_structured_output(self):
        for method, strict in (("json_schema", True), ("json_schema", None), ("function_calling", None), ("function_calling", True)):
            with self.subTest(method, strict=strict):
                model = self.model().with_structured_output(Person, method=method, strict=strict)
                self.assertEqual(model.invoke(PERSON), NORA)

    def test_json_mode(self):
        self.assertEqual(self.model().with_structured_output(Person, method="json_mode").invoke(PERSON), NORA)

    def test_streamed_structured_output(self):
        model = self.model().with_structured_output(Person.model_json_schema(), method="json_schema")
        self.assertEqual(list(model.stream(PERSON))[-1], NORA.model_dump())

    def test_effort(self):
        low, high = (self.model(reasoning_effort=e).invoke(PRODUCT).usage_metadata["output_tokens"] for e in ("low", "high"))
        self.assertLess(low, high)

    def test_context_error(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.model().invoke(LONG)
        self.assertEqual(caught.exception.code, "context_length_exceeded")


class Responses(Chat):
    responses = True


class Completions(Case):
    def test_invoke(self):
        model = OpenAI(model=MODEL, base_url=self.url, api_key="none", temperature=0, max_tokens=8)
        self.assertTrue(model.invoke("Once upon a time"))

    def test_logprobs(self):
        model = ChatOpenAI(model=MODEL, base_url=self.url, api_key="none", temperature=0, logprobs=True, top_logprobs=2)
        entries = model.invoke(SUM).response_metadata["logprobs"]["content"]
        self.assertEqual("".join(entry["token"] for entry in entries), "17 + 25 = 42")


if __name__ == "__main__":
    unittest.main()
