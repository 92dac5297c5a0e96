"""llm, the command line and library, with a model of extra-openai-models.yaml."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from case import MODEL, PERSON, PRODUCT, WEATHER, Case


class LLM(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = tempfile.TemporaryDirectory()
        models = [{"model_id": "here", "model_name": MODEL, "api_base": cls.url, "supports_tools": True, "supports_schema": True,
                   "reasoning": True},
                  {"model_id": "here-completion", "model_name": MODEL, "api_base": cls.url, "completion": True}]
        (pathlib.Path(cls.home.name) / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML

    @classmethod
    def tearDownClass(cls):
        cls.home.cleanup()
        super().tearDownClass()

    def llm(self, *words):
        env = {**os.environ, "LLM_USER_PATH": self.home.name, "OPENAI_API_KEY": "none"}
        done = subprocess.run([pathlib.Path(sys.executable).parent / "llm", *words], env=env, capture_output=True, text=True,
                              timeout=120, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def test_prompt(self):
        for stream in ([], ["--no-stream"]):
            self.assertEqual(self.llm("-m", "here", PRODUCT, *stream, "-o", "temperature", "0"), "47 x 36 = 1692")

    def test_conversation(self):
        self.llm("-m", "here", PRODUCT, "-o", "temperature", "0")
        self.assertIn("42", self.llm("-c", "What is 17 + 25?", "-o", "temperature", "0"))

    def test_schema(self):
        out = self.llm("-m", "here", "--schema", "name, age int, city", PERSON, "-o", "temperature", "0")
        self.assertEqual(json.loads(out), {"name": "Nora", "age": 34, "city": "Oslo"})

    def test_tool(self):
        code = 'def get_weather(location: str) -> dict:\n    "Get the weather of a city."\n    return {"temperature": 21, "sky": "sunny"}'
        self.assertIn("sunny", self.llm("-m", "here", "--functions", code, WEATHER, "-o", "temperature", "0"))

    def test_completion(self):
        self.assertTrue(self.llm("-m", "here-completion", "Once upon a time", "-o", "max_tokens", "8"))


if __name__ == "__main__":
    unittest.main()
