"""LiteLLM: its openai provider and its hosted_vllm one."""

import asyncio
import json
import unittest

import litellm
import pydantic
from case import LONG, MODEL, PERSON, PRODUCT, SUM, WEATHER, WEATHER_TOOL, Case


class Person(pydantic.BaseModel):
    name: str
    age: int
    city: str


class LiteLLM(Case):
    provider = "openai"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        litellm.suppress_debug_info = True

    def arguments(self, text=SUM, **options):
        return {"model": f"{self.provider}/{MODEL}", "messages": [{"role": "user", "content": text}], "temperature": 0,
                "api_base": self.url, "api_key": "none", "timeout": 60, "num_retries": 0, **options}

    def complete(self, text=SUM, **options):
        return litellm.completion(**self.arguments(text, **options))

    def test_completion(self):
        answer = self.complete(PRODUCT)
        self.assertEqual(answer.choices[0].message.content, "47 x 36 = 1692")
        self.assertTrue(answer.choices[0].message.reasoning_content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertGreater(answer.usage.completion_tokens, 20)

    def test_acompletion(self):
        async def both():
            return await asyncio.gather(*(litellm.acompletion(**self.arguments(text)) for text in (SUM, PRODUCT)))

        texts = [answer.choices[0].message.content for answer in asyncio.run(both())]
        self.assertEqual(texts, ["17 + 25 = 42", "47 x 36 = 1692"])

    def test_stream(self):
        chunks = list(self.complete(PRODUCT, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        self.assertEqual("".join(delta.content or "" for delta in deltas), "47 x 36 = 1692")
        self.assertIn("1692", "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas))
        whole = litellm.stream_chunk_builder(chunks)
        self.assertEqual(whole.usage.completion_tokens, self.complete(PRODUCT).usage.completion_tokens)

    def test_async_stream(self):
        async def text():
            stream = await litellm.acompletion(**self.arguments(stream=True))
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        self.assertEqual(asyncio.run(text()), "17 + 25 = 42")

    def test_tools(self):
        question = [{"role": "user", "content": WEATHER}]
        answer = self.complete(messages=question, tools=[WEATHER_TOOL], tool_choice="auto").choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        call = answer.message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"location": "Oslo"}))
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": '{"temperature": 21, "sky": "sunny"}'}
        final = self.complete(messages=[*question, answer.message, result], tools=[WEATHER_TOOL])
        self.assertEqual(final.choices[0].message.content, "It is sunny in Oslo, at 21 degrees.")

    def test_streamed_tools(self):
        chunks = list(self.complete(WEATHER, tools=[WEATHER_TOOL], tool_choice="required", stream=True))
        call = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
        self.assertEqual(json.loads(call.function.arguments), {"location": "Oslo"})

    def test_response_format(self):
        for form in (Person, {"type": "json_object"}):
            answer = self.complete(PERSON, response_format=form)
            self.assertEqual(Person.model_validate_json(answer.choices[0].message.content),
                             Person(name="Nora", age=34, city="Oslo"), form)

    def test_effort(self):
        low, high = (self.complete(PRODUCT, reasoning_effort=effort, allowed_openai_params=["reasoning_effort"])
                     .usage.completion_tokens for effort in ("low", "high"))
        self.assertLess(low, high)

    def test_text_completion(self):
        answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="Once upon a time", max_tokens=8,
                                         temperature=0, api_base=self.url, api_key="none")
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 8)

    def test_context_error(self):
        with self.assertRaises(litellm.ContextWindowExceededError):
            self.complete(LONG)

    def test_streamed_context_error(self):
        with self.assertRaises(litellm.ContextWindowExceededError):
            list(self.complete(LONG, stream=True))

    def test_context_fallback_sees_a_refusal(self):
        with self.assertRaises(litellm.BadRequestError):
            self.complete(LONG)

    def test_errors(self):
        with self.assertRaises(litellm.BadRequestError):
            self.complete(top_p=7)
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(**self.arguments() | {"model": f"{self.provider}/gpt-9"})

    def test_responses(self):
        answer = litellm.responses(model=f"openai/{MODEL}", input=PRODUCT, temperature=0, api_base=self.url, api_key="none")
        self.assertIn("1692", answer.output[-1].content[0].text)


class HostedVLLM(LiteLLM):
    """The provider that its users choose for servers of vLLM's kind."""

    provider = "hosted_vllm"


class Keys(Case):
    env = {"MOESAIC_API_KEY": "right"}

    def test_keys(self):
        ask = {"model": f"openai/{MODEL}", "messages": [{"role": "user", "content": SUM}], "api_base": self.url,
               "num_retries": 0, "temperature": 0}
        self.assertEqual(litellm.completion(api_key="right", **ask).choices[0].message.content, "17 + 25 = 42")
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(api_key="wrong", **ask)


if __name__ == "__main__":
    unittest.main()
