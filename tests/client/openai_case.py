"""One server for all cases of the openai client."""

import atexit
import unittest

import openai
from served import Served

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Gets the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(text):
    return [{"role": "user", "content": text}]


SUM = ask("What is 17 + 25?")

_server = None


def the_server():
    global _server
    if _server is None:
        _server = Served("--max-batch", 8).wait_ready()
        atexit.register(_server.stop)
    return _server


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = the_server()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def chat(self, messages=None, **options):
        options.setdefault("temperature", 0)
        return self.client.chat.completions.create(model="tiny", messages=messages or SUM, **options)
