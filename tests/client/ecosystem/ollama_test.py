"""The ollama package: chat, streams, tools, thinking, formats, the list of models, errors."""

import json
import unittest

import ollama
from case import MODEL, PERSON, SUM, WEATHER, Case, get_weather


def ask(text):
    return [{"role": "user", "content": text}]


class OllamaClient(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = ollama.Client(host=cls.server.url)

    def chat(self, text=SUM, **options):
        return self.client.chat(**{"model": MODEL, "messages": ask(text), "options": {"temperature": 0}, **options})

    def test_chat(self):
        answer = self.chat(think=True)
        self.assertIn("42", answer.message.content)
        self.assertTrue(answer.message.thinking)
        self.assertEqual((answer.done, answer.done_reason), (True, "stop"))
        self.assertGreater(answer.eval_count, 0)
        self.assertGreater(answer.eval_duration, 0)

    def test_stream(self):
        whole = self.chat(think="medium")
        parts = list(self.chat(think="medium", stream=True))
        self.assertEqual("".join(p.message.content or "" for p in parts), whole.message.content)
        self.assertEqual("".join(p.message.thinking or "" for p in parts), whole.message.thinking)
        self.assertEqual(parts[-1].eval_count, whole.eval_count)

    def test_tools(self):
        first = self.chat(WEATHER, tools=[get_weather])
        call = first.message.tool_calls[0].function
        self.assertEqual((call.name, dict(call.arguments)), ("get_weather", {"location": "Oslo"}))
        history = [*ask(WEATHER), first.message,
                   {"role": "tool", "tool_name": call.name, "content": get_weather(**call.arguments)}]
        self.assertIn("21", self.chat(messages=history, tools=[get_weather]).message.content)

    def test_format(self):
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        self.assertEqual(list(json.loads(self.chat(PERSON, format=schema).message.content)), ["name"])

    def test_generate(self):
        answer = self.client.generate(model=MODEL, prompt=SUM, system="Be brief.", options={"temperature": 0})
        self.assertIn("42", answer.response)

    def test_logprobs(self):
        whole = self.chat(logprobs=True, top_logprobs=2)
        self.assertEqual("".join(entry.token for entry in whole.logprobs), whole.message.content)
        for entry in whole.logprobs:
            self.assertEqual([entry.token, entry.logprob], [entry.top_logprobs[0].token, entry.top_logprobs[0].logprob])
            self.assertEqual(len(entry.top_logprobs), 2)
        parts = [part for part in self.chat(stream=True, logprobs=True) if part.logprobs]
        self.assertEqual("".join(entry.token for part in parts for entry in part.logprobs), whole.message.content)

    def test_models(self):
        self.assertEqual([m.model for m in self.client.list().models], [MODEL])
        self.assertEqual([m.model for m in self.client.ps().models], [MODEL])
        shown = self.client.show(MODEL)
        self.assertIn("tools", shown.capabilities)
        self.assertEqual(shown.modified_at, self.client.list().models[0].modified_at)

    def test_errors(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.chat(model="other")
        self.assertEqual(caught.exception.status_code, 404)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.chat(options={"mirostat": 2})
        self.assertIn("mirostat", caught.exception.error)


if __name__ == "__main__":
    unittest.main()
