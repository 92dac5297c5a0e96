import os

import pytest

import moesaic

# Servers of this machine are asked without a proxy.
os.environ["no_proxy"] = "127.0.0.1,localhost," + os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))


@pytest.fixture(scope="session")
def llm():
    with moesaic.LLM("tiny", device="cpu", threads=1, context=512, max_batch=8) as engine:
        yield engine


@pytest.fixture
def question():
    return [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.fixture
def weather():
    return {"type": "function",
            "function": {"name": "get_weather", "description": "Current weather in a city.",
                         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                                        "additionalProperties": False}}}
