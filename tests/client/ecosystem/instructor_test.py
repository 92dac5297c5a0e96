"""instructor: its modes, its retries after an answer that its validation refuses, and its partial streams."""

import asyncio
import unittest
from typing import List

import instructor
import openai
import pydantic
from case import MODEL, PERSON, Case
from instructor.core.exceptions import InstructorRetryException


class Person(pydantic.BaseModel):
    """A person."""

    name: str
    age: int
    city: str


NORA = {"name": "Nora", "age": 34, "city": "Oslo"}
MODES = [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.JSON]


class Modes(Case):
    context = 4096  # each retry tells the failed answers again

    def client(self, mode, kind=openai.OpenAI):
        made = kind(base_url=self.url, api_key="none", max_retries=0, timeout=60)
        return instructor.from_openai(made, mode=mode)

    def extract(self, mode, model=Person, text=PERSON, **options):
        return self.client(mode).chat.completions.create(
            model=MODEL, response_model=model, messages=[{"role": "user", "content": text}], temperature=0, **options)

    def test_modes(self):
        for mode in MODES:
            with self.subTest(mode):
                self.assertEqual(self.extract(mode).model_dump(), NORA)

    def test_strict_tools(self):
        self.assertEqual(self.extract(instructor.Mode.TOOLS_STRICT).model_dump(), NORA)

    def test_responses(self):
        client = self.client(instructor.Mode.RESPONSES_TOOLS)
        self.assertEqual(client.responses.create(model=MODEL, input=PERSON, response_model=Person).model_dump(), NORA)

    def test_async(self):
        async def work():
            client = self.client(instructor.Mode.JSON_SCHEMA, openai.AsyncOpenAI)
            return await client.chat.completions.create(
                model=MODEL, response_model=Person, messages=[{"role": "user", "content": PERSON}], temperature=0)

        self.assertEqual(asyncio.run(work()).model_dump(), NORA)

    def test_partial(self):
        for mode in MODES:
            with self.subTest(mode):
                parts = list(self.client(mode).chat.completions.create_partial(
                    model=MODEL, response_model=Person, messages=[{"role": "user", "content": PERSON}], temperature=0))
                self.assertGreater(len(parts), 3)
                self.assertEqual(parts[-1].model_dump(), NORA)

    def test_list(self):
        class Item(pydantic.BaseModel):
            item: str
            count: int

        items = self.extract(instructor.Mode.TOOLS, List[Item],
                             "Write as a JSON list with item and count: 12 lamps, 3 keys.", max_tokens=300)
        self.assertTrue(all(isinstance(item, Item) for item in items))

    def test_retries(self):
        for mode in MODES[:2]:  # tiny answers {} to a JSON conversation that tells of its errors; a schema holds it
            with self.subTest(mode):
                tries = []

                class Once(Person):
                    @pydantic.model_validator(mode="after")
                    def refuse_the_first(self):
                        tries.append(self.name)
                        if len(tries) == 1:
                            raise ValueError("say it again")
                        return self

                self.assertIsInstance(self.extract(mode, Once, max_retries=3), Once)
                self.assertGreaterEqual(len(tries), 2)

    def test_given_up(self):
        class Never(Person):
            @pydantic.model_validator(mode="after")
            def refuse(self):
                raise ValueError("never")

        with self.assertRaises(InstructorRetryException):
            self.extract(instructor.Mode.JSON_SCHEMA, Never, max_retries=2)


if __name__ == "__main__":
    unittest.main()
