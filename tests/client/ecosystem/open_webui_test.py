"""Open WebUI, the program itself as PyPI carries it, over OpenAI's API and over Ollama's: its models, chats as its page sends them,
native function calls and titles."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from case import MODEL, SUM, WEATHER, WEATHER_TOOL, Case

PROGRAM = pathlib.Path(sys.executable).parent / "open-webui"
QUIET = {"WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "x", "OFFLINE_MODE": "true", "ENABLE_VERSION_UPDATE_CHECK": "false",
         "SCARF_NO_ANALYTICS": "true", "RAG_EMBEDDING_ENGINE": "openai", "OPENAI_API_KEY": "none"}
START_SECONDS = 120


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class OpenWebUi:
    """Its server, which is asked as its page does."""

    context = 16384

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        cls.base = f"http://127.0.0.1:{free_port()}"
        cls.log = open(pathlib.Path(cls.folder.name) / "log", "w+")
        env = {**os.environ, **QUIET, "DATA_DIR": cls.folder.name, "ENABLE_OPENAI_API": str(cls.openai), "ENABLE_OLLAMA_API": str(not cls.openai),
               "OPENAI_API_BASE_URL": cls.url, "OLLAMA_BASE_URL": cls.server.url}
        cls.process = subprocess.Popen([PROGRAM, "serve", "--host", "127.0.0.1", "--port", cls.base.rsplit(":", 1)[1]], env=env,
                                       cwd=cls.folder.name, stdout=cls.log, stderr=subprocess.STDOUT)
        cls.token = None
        end = time.monotonic() + START_SECONDS
        while cls.token is None:
            try:
                cls.token = json.loads(cls.request("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
            except (urllib.error.URLError, ConnectionError):
                if cls.process.poll() is not None or time.monotonic() > end:
                    cls.log.seek(0)
                    raise AssertionError(f"it did not start: {cls.log.read()[-3000:]}") from None
                time.sleep(0.2)

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        cls.process.wait(60)
        cls.log.close()
        cls.folder.cleanup()
        super().tearDownClass()

    @classmethod
    def request(cls, path, body=None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {cls.token}"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(cls.base + path, data, headers), timeout=60) as answer:
            return answer.read().decode()

    def stream(self, messages, **fields):
        """(text, reasoning, calls, finish reason) of the chunks that its page would get."""
        lines = self.request("/api/chat/completions", {"model": MODEL, "messages": messages, "stream": True, "temperature": 0, **fields})
        chunks = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith("data: {")]
        choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
        joined = lambda name: "".join(choice["delta"].get(name) or "" for choice in choices)
        calls = {}
        for part in [part for choice in choices for part in choice["delta"].get("tool_calls") or []]:
            call = calls.setdefault(part["index"], {"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}})
            for name in call["function"]:
                call["function"][name] += part["function"].get(name) or ""
        return joined("content"), joined("reasoning_content"), [*calls.values()], [c["finish_reason"] for c in choices if c.get("finish_reason")][-1]

    def test_models(self):
        self.assertEqual([(m["id"], m["owned_by"]) for m in json.loads(self.request("/api/models"))["data"] if not m.get("arena")],
                         [(MODEL, "openai" if self.openai else "ollama")])

    def test_a_conversation(self):
        text, reasoning, calls, finish = self.stream([{"role": "user", "content": SUM}])
        self.assertEqual((text, bool(reasoning), calls, finish), ("17 + 25 = 42", True, [], "stop"))
        history = [{"role": "user", "content": SUM}, {"role": "assistant", "content": text}, {"role": "user", "content": "What is 2 + 3?"}]
        self.assertEqual(self.stream(history)[0], "2 + 3 = 5")

    def test_a_call_and_its_result(self):
        history = [{"role": "user", "content": WEATHER}]
        _, _, [call], finish = self.stream(history, tools=[WEATHER_TOOL])
        self.assertEqual((call["function"]["name"], json.loads(call["function"]["arguments"])), ("get_weather", {"location": "Oslo"}))
        self.assertIn(finish, ("tool_calls", "stop"))
        history += [{"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": '{"temperature": 21, "sky": "sunny"}'}]
        self.assertIn("21", self.stream(history, tools=[WEATHER_TOOL])[0])

    def test_titles(self):
        """Of its task model, not streamed, with a long prompt of its own; tiny's words are no title."""
        messages = [{"role": "user", "content": SUM}, {"role": "assistant", "content": "42"}]
        answer = json.loads(self.request("/api/v1/tasks/title/completions", {"model": MODEL, "messages": messages}))
        self.assertTrue(answer["choices"][0]["message"]["content"])


class OverOpenAi(OpenWebUi, Case):
    openai = True


class OverOllama(OpenWebUi, Case):
    openai = False


if __name__ == "__main__":
    unittest.main()
