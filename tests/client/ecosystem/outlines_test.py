"""outlines: what an answer must look like, as OpenAI's, vLLM's, SGLang's and Ollama's clients say it."""

import re
import unittest
from typing import Literal

import ollama
import openai
import outlines
import pydantic
from case import MODEL, PERSON, SUM, Case
from outlines.types import CFG, Regex


class Person(pydantic.BaseModel):
    name: str
    age: int
    city: str


class Outlines(Case):
    never_refused = "/"

    def served(self, *kinds):
        """(model, options) of each kind, in a subtest of its own."""
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)
        for kind in kinds or ("openai", "vllm", "sglang", "ollama"):
            with self.subTest(kind):
                if kind == "ollama":
                    yield outlines.from_ollama(ollama.Client(self.server.url), MODEL), {"options": {"temperature": 0}}
                else:
                    yield getattr(outlines, f"from_{kind}")(client, MODEL), {"temperature": 0}

    def test_text(self):
        for model, options in self.served():
            self.assertEqual(model(SUM, **options), "17 + 25 = 42")
            self.assertEqual("".join(model.stream(SUM, **options)), "17 + 25 = 42")

    def test_schema(self):
        for model, options in self.served():
            self.assertEqual(Person.model_validate_json(model(PERSON, Person, **options)), Person(name="Nora", age=34, city="Oslo"))

    def test_choice(self):
        for model, options in self.served("vllm", "sglang"):
            self.assertIn(model(SUM, Literal["41", "43"], **options), ("41", "43"))

    def test_regular_expression(self):
        for model, options in self.served("vllm", "sglang"):
            self.assertTrue(re.fullmatch("[0-9]{2}!", model(SUM, Regex("[0-9]{2}!"), **options)))

    def test_grammar(self):
        for model, options in self.served("vllm", "sglang"):
            self.assertIn(model(SUM, CFG('root ::= "yes" | "no"'), **options), ("yes", "no"))


if __name__ == "__main__":
    unittest.main()
