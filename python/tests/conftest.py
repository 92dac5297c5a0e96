import pytest

import moesaic


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
