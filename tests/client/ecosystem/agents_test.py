"""Turns with a call, as agents and other programs that are not on PyPI send them and read their streams (docs/user/agents.md).
The fields, headers and forms of messages are written after their sources and documentation. Temperature 0 is added, so
that tiny's answers are known."""

import json
import unittest

from case import MODEL, SUM, WEATHER, WEATHER_TOOL, Case

RESULT = '{"temperature": 21, "sky": "sunny"}'
SUNNY = "It is sunny in Oslo, at 21 degrees."
ZOD_TOOL = {**WEATHER_TOOL, "function": {**WEATHER_TOOL["function"], "parameters": {
    "$schema": "http://json-schema.org/draft-07/schema#", **WEATHER_TOOL["function"]["parameters"], "additionalProperties": False}}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def text(content):
    return content


def parts(content):
    return [{"type": "text", "text": content}]


class ChatCompletions(Case):
    """Of each client: what it adds to a request, its headers, its form of contents, and what it sends back of an answer."""

    CLIENTS = {
        "opencode": ({**USAGE, "max_tokens": 32000, "top_p": 1, "tools": [ZOD_TOOL], "tool_choice": "auto"},
                     {"User-Agent": "opencode/1.2.0 ai-sdk/openai-compatible/2.0.2", "Authorization": "Bearer none"}, text,
                     {"content": "", "reasoning_content": "reasoning"}),
        "Cline": ({**USAGE, "max_tokens": 8192, "tools": [WEATHER_TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
                  {"HTTP-Referer": "https://cline.bot", "X-Title": "Cline", "X-Stainless-Lang": "js"}, parts, {"content": None}),
        "Continue": ({"stream": True, "max_tokens": 4096, "tools": [WEATHER_TOOL], "parallel_tool_calls": False},
                     {"Authorization": "Bearer none", "api-key": "none", "x-api-key": "none"}, text, {"content": " "}),
        "Zed": ({**USAGE, "max_completion_tokens": 16384, "stop": [], "tools": [WEATHER_TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
                {"User-Agent": "Zed/1.9.0 (linux; x86_64)"}, parts, {"content": None}),
        "Copilot": ({**USAGE, "top_p": 1, "n": 1, "max_tokens": 16384, "tools": [WEATHER_TOOL]},
                    {"User-Agent": "GitHubCopilotChat/0.55.0", "OpenAI-Intent": "conversation-agent", "X-Initiator": "agent"}, text, {"content": ""}),
        "Open WebUI": ({**USAGE, "tools": [WEATHER_TOOL], "function_calling": None},
                       {"HTTP-Referer": "https://openwebui.com/", "X-Title": "Open WebUI"}, text,
                       {"content": "", "reasoning_content": "reasoning"}),
        "n8n": ({**USAGE, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1, "tools": [ZOD_TOOL]},
                {"User-Agent": "n8n", "X-Stainless-Lang": "js", "openai-platform": "org"}, text, {"content": ""}),
    }

    def stream(self, messages, fields, headers):
        """(message, finish reason, usage or None), put together as clients do it."""
        body = {"model": MODEL, "messages": messages, "temperature": 0, **fields}
        status, head, data = self.server.call("POST", "/v1/chat/completions", body, {"Content-Type": "application/json", **headers})
        self.assertEqual((status, head.get_content_type()), (200, "text/event-stream"), data)
        events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        message, finish, usage = {"content": "", "reasoning": "", "tool_calls": []}, None, None
        for chunk in map(json.loads, events[:-1]):
            self.assertEqual((chunk["object"], chunk["model"]), ("chat.completion.chunk", MODEL))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta, finish = choice["delta"], choice["finish_reason"] or finish
                message["content"] += delta.get("content") or ""
                message["reasoning"] += delta.get("reasoning_content") or ""
                for call in delta.get("tool_calls", []):
                    if call["index"] == len(message["tool_calls"]):
                        message["tool_calls"].append({"id": call["id"], "type": call["type"], "function": {"name": call["function"]["name"], "arguments": ""}})
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"].get("arguments") or ""
        self.assertEqual(usage is not None, "stream_options" in fields)
        return message, finish

    def test_turns(self):
        for client, (fields, headers, form, kept) in self.CLIENTS.items():
            with self.subTest(client):
                history = [{"role": "user", "content": form(WEATHER)}]
                first, finish = self.stream(history, fields, headers)
                self.assertEqual((finish, len(first["tool_calls"])), ("tool_calls", 1), first)
                [call] = first["tool_calls"]
                self.assertEqual((call["function"]["name"], json.loads(call["function"]["arguments"])), ("get_weather", {"location": "Oslo"}))
                back = {key: first[value] if value in first else value for key, value in kept.items()}
                history += [{"role": "assistant", **back, "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
                second, finish = self.stream(history, fields, headers)
                self.assertEqual((second["content"], finish), (SUNNY, "stop"))
                history += [{"role": "assistant", "content": form(SUNNY)}, {"role": "user", "content": form(SUM)}]
                self.assertTrue(self.stream(history, fields, headers)[0]["content"])

    def test_models_are_listed(self):
        for path in ("/v1/models", "/models"):
            self.assertEqual([m["id"] for m in json.loads(self.server.call("GET", path)[2])["data"]], [MODEL])

    def test_open_webuis_titles(self):
        """Beside a conversation, not streamed."""
        for limit in ("max_tokens", "max_completion_tokens"):
            body = {"model": MODEL, "messages": [{"role": "user", "content": SUM}], "stream": False, limit: 1000, "temperature": 0}
            status, answer = self.server.post("/v1/chat/completions", body)
            self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "17 + 25 = 42"))


class HomeAssistant(Case):
    """As its integration calls the ollama package, which ollama_test.py runs; n8n's Ollama node sends the same without tools."""

    def chat(self, messages):
        body = {"model": MODEL, "messages": messages, "tools": [WEATHER_TOOL], "stream": True, "think": False, "keep_alive": "-1s",
                "options": {"num_ctx": 8192, "temperature": 0}}
        status, head, data = self.server.call("POST", "/api/chat", body, {"Content-Type": "application/json"})
        self.assertEqual((status, head.get_content_type()), (200, "application/x-ndjson"), data)
        lines = [json.loads(line) for line in data.splitlines()]
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
        return "".join(line["message"].get("content", "") for line in lines), calls

    def test_start(self):
        self.assertEqual([m["model"] for m in json.loads(self.server.call("GET", "/api/tags")[2])["models"]], [MODEL])

    def test_turn(self):
        history = [{"role": "user", "content": WEATHER}]
        _, [call] = self.chat(history)
        self.assertEqual((call["function"]["name"], call["function"]["arguments"]), ("get_weather", {"location": "Oslo"}))
        history += [{"role": "assistant", "content": "", "tool_calls": [{"function": call["function"]}]},
                    {"role": "tool", "tool_name": "get_weather", "content": RESULT}]
        text_of, calls = self.chat(history)
        self.assertEqual((calls, "21" in text_of), ([], True), text_of)


if __name__ == "__main__":
    unittest.main()
