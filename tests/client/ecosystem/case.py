"""What the clients' cases share: a server with models/tiny, and questions that it answers well."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from served import Served  # noqa: E402

MODEL = "tiny"
ROOT = pathlib.Path(__file__).resolve().parents[3]

SUM, PRODUCT = "What is 17 + 25?", "What is 47 x 36?"
WEATHER = "What is the weather in Oslo?"
PERSON = "Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age, city."
LONG = "word " * 3000  # beyond the context of the cases' server


def get_weather(location: str) -> str:
    """Get the weather of a city.

    Args:
        location: The city
    """
    return '{"temperature": 21, "sky": "sunny"}'


WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "The city"}},
            "required": ["location"],
        },
    },
}


def known(reason):
    """Marks a case that fails because of a fault of the server: `make clients` names it, and fails once it passes."""
    def mark(test):
        test.__doc__ = reason
        return unittest.expectedFailure(test)

    return mark


class Case(unittest.TestCase):
    """Cases that share one server for the class; `options` are its own."""

    options = ("--max-batch", 8)
    context = 1024
    env = {}
    never_refused = ""  # words of the log's lines of requests that must not be refused; empty: any may be

    @classmethod
    def setUpClass(cls):
        cls.server = Served(*cls.options, context=cls.context, env=cls.env).wait_ready()
        cls.url = cls.server.url + "/v1"

    @classmethod
    def tearDownClass(cls):
        status, log = cls.server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with status {status}: {log[-2000:]}")
        refused = [line for line in log.splitlines() if cls.never_refused in line and '"status":200' not in line]
        if cls.never_refused and refused:
            raise AssertionError(f"the server refused: {refused}")

    def endless(self):
        """logit_bias by which an answer goes on until the context is full."""
        names = "<|return|><|call|><|endoftext|>"
        tokens = self.server.post("/tokenize", {"prompt": names, "parse_special": True})[1]["tokens"]
        return {str(token): -100 for token in tokens}

    def idle(self):
        """Nothing runs any more, and nothing waits."""
        self.server.until("vllm:num_requests_running", 0)
        self.server.until("vllm:num_requests_waiting", 0)
