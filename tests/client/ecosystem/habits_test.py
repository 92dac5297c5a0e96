"""Requests as clients that are not on PyPI send them: Open WebUI, Continue, Cline, Codex, Zed, LibreChat, n8n, Dify, aider,
OpenHands, and libraries of other languages. Needs nothing but Python."""

import gzip
import json
import socket
import unittest

from case import MODEL, PERSON, SUM, WEATHER, WEATHER_TOOL, Case, known

SUM_ANSWER = "17 + 25 = 42"
SUNNY = "It is sunny in Oslo, at 21 degrees."
RESULT = '{"temperature": 21, "sky": "sunny"}'
FLAT_TOOL = {"type": "function", **WEATHER_TOOL["function"], "strict": False}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(**more):
    return {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location": "Oslo"}'}, **more}


class Habits(Case):
    def chat(self, messages=None, **options):
        body = {"model": MODEL, "messages": messages or [user(SUM)], "temperature": 0, **options}
        status, answer = self.server.post("/v1/chat/completions", body, {"Content-Type": "application/json"})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def says(self, expected, messages=None, **options):
        self.assertEqual(self.chat(messages, **options)["message"]["content"], expected)

    def respond(self, items, **options):
        status, answer = self.server.post("/v1/responses", {"model": MODEL, "input": items, "temperature": 0, **options})
        self.assertEqual(status, 200, answer)
        return answer

    def each(self, cases, check):
        for name, case in cases.items():
            with self.subTest(name):
                check(case)


class Fields(Habits):
    def test_null_is_absent(self):
        names = """temperature top_p max_tokens max_completion_tokens n stop stream stream_options seed user tools tool_choice
            parallel_tool_calls response_format logit_bias logprobs top_logprobs presence_penalty frequency_penalty functions
            function_call audio modalities prediction metadata store service_tier reasoning_effort verbosity web_search_options
            min_p top_k repetition_penalty prompt_cache_key""".split()
        self.says(SUM_ANSWER, **{name: None for name in names if name != "temperature"})
        self.each({name: name for name in names if name != "temperature"}, lambda name: self.says(SUM_ANSWER, **{name: None}))

    def test_empty_is_absent(self):
        """Zed, go-openai."""
        self.says(SUM_ANSWER, stop=[], tools=[], tool_choice="auto", logit_bias={}, metadata={}, parallel_tool_calls=True)

    def test_more_than_the_context(self):
        """Cline, OpenHands: the most that the model of their list can write."""
        self.says(SUM_ANSWER, max_completion_tokens=128000)

    def test_no_functions(self):
        self.says(SUM_ANSWER, functions=[], function_call="auto")
        self.says(SUM_ANSWER, function_call="none")

    def test_stop_strings(self):
        stops = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<|endoftext|>", "</fim_middle>", "</code>",
                 "\n\n", "\r\n\r\n", "/src/", "#- coding: utf-8", "```", "\nfunction", "\nclass", "\nmodule", "\nexport", "\nimport"]
        self.says(SUM_ANSWER, stop=stops)

    def test_effort(self):
        self.assertFalse(self.chat(reasoning={"effort": "low"})["message"].get("reasoning_content"))

    def test_schema_forms(self):
        schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
                  "required": ["name", "age", "city"], "additionalProperties": False, "title": "Person", "$schema": "x"}
        for form in ({"name": "a", "schema": schema}, {"name": "a", "schema": schema, "strict": None, "description": None}):
            choice = self.chat([user(PERSON)], response_format={"type": "json_schema", "json_schema": form})
            self.assertEqual(json.loads(choice["message"]["content"]), {"name": "Nora", "age": 34, "city": "Oslo"})


class Messages(Habits):
    def test_history(self):
        old = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None, "reasoning_content": "x"}
        self.each({
            "parts with cache_control (OpenHands)": [{"role": "system", "content": [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}, user([{"type": "text", "text": SUM}])],
            "name": [{"role": "user", "name": "Ann", "content": SUM}],
            "openai-python's model_dump": [user("What is 2 + 3?"), assistant("5", **old), user(SUM)],
            "empty calls": [user("What is 2 + 3?"), assistant("5", tool_calls=[]), user(SUM)],
            "nothing said": [user("Hi"), assistant(None), user(SUM)],
            "two questions": [user("Hi"), user(SUM)],
            "a greeting first": [assistant("Hello!"), user(SUM)],
            "system in the middle": [user("Hi"), {"role": "system", "content": "Be brief."}, user(SUM)],
            "empty part": [user([{"type": "text", "text": ""}, {"type": "text", "text": SUM}])],
        }, lambda messages: self.says(SUM_ANSWER, messages))

    def test_calls_in_the_history(self):
        def result(content, **more):
            return {"role": "tool", "tool_call_id": "call_1", "content": content, **more}

        self.each({
            "plain": [user(WEATHER), assistant(None, tool_calls=[call()]), result(RESULT)],
            "empty content": [user(WEATHER), assistant("", tool_calls=[call()]), result(RESULT)],
            "name": [user(WEATHER), assistant(None, tool_calls=[call()]), result(RESULT, name="get_weather")],
            "index of a stream": [user(WEATHER), assistant(None, tool_calls=[call(index=0)]), result(RESULT)],
            "no type": [user(WEATHER), assistant(None, tool_calls=[call(type="")]), result(RESULT)],
            "parts": [user(WEATHER), assistant(None, tool_calls=[call()]), result([{"type": "text", "text": RESULT}])],
            "text beside it": [user(WEATHER), assistant("Let me look.", tool_calls=[call()]), result(RESULT)],
        }, lambda messages: self.says(SUNNY, messages, tools=[WEATHER_TOOL]))

    def test_refusal(self):
        self.says(SUM_ANSWER, [user("Hi"), assistant([{"type": "refusal", "refusal": "No."}]), user(SUM)])

    def test_half_a_surrogate_pair(self):
        body = json.dumps({"model": MODEL, "messages": [user("x")], "max_tokens": 3}).replace('"x"', '"Hi \\ud83d there"')
        status, _, answer = self.server.call("POST", "/v1/chat/completions", body.encode())
        self.assertEqual(status, 200, answer)


class Tools(Habits):
    def test_parameters(self):
        self.each({
            "none": {}, "null": {"parameters": None, "description": None, "strict": None}, "empty": {"parameters": {}},
            "zod": {"parameters": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {
                "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}, "additionalProperties": {}}},
            "what only a prompt can say": {"parameters": {"type": "object", "properties": {
                "a": {"type": "string", "format": "uri", "pattern": "^(?!x).*$"}, "b": {"not": {}}}}},
        }, lambda more: self.says(SUM_ANSWER, tools=[{"type": "function", "function": {"name": "f", **more}}]))

    def test_required_null(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"location": {"type": "string"}}, "required": None}}}
        self.assertEqual(self.chat([user(WEATHER)], tools=[tool], tool_choice="required")["finish_reason"], "tool_calls")


class Agents(Habits):
    """Codex and other agents, through Responses."""

    QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": WEATHER}]}
    CALL = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"location": "Oslo"}'}
    OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": RESULT}

    def text(self, answer):
        return "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])

    def test_histories(self):
        self.each({
            "nulls": [self.QUESTION, {**self.CALL, "id": None, "status": None}, {**self.OUTPUT, "id": None, "status": None}],
            "reasoning of another model": [self.QUESTION, {"type": "reasoning", "summary": [], "content": None,
                                                           "encrypted_content": "x"}, self.CALL, self.OUTPUT],
            "namespace": [self.QUESTION, {**self.CALL, "namespace": "mcp"}, self.OUTPUT],
            "parts": [self.QUESTION, self.CALL, {**self.OUTPUT, "output": [{"type": "input_text", "text": RESULT}]}],
        }, lambda items: self.assertEqual(self.text(self.respond(items, tools=[FLAT_TOOL])), SUNNY))

    def test_items_of_other_tools(self):
        shell = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
        patch = {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}}
        self.each({
            "custom_tool_call": [{"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"},
                                 {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}],
            "local_shell_call": [{"type": "local_shell_call", "call_id": "c", "status": "completed", "action": {
                "type": "exec", "command": ["ls"]}}, {"type": "function_call_output", "call_id": "c", "output": "a"}],
            "shell_call": [shell, {"type": "shell_call_output", "call_id": "c", "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}],
            "apply_patch_call": [patch, {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "ok"}],
            "web_search_call": [{"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}}],
            "mcp": [{"type": "mcp_list_tools", "server_label": "x", "tools": []},
                    {"type": "mcp_call", "server_label": "x", "name": "y", "arguments": "{}", "output": "z"}],
            "file_search_call": [{"type": "file_search_call", "queries": ["x"], "results": None, "status": "completed"}],
            "code_interpreter_call": [{"type": "code_interpreter_call", "code": "1", "outputs": None, "container_id": "c"}],
            "image_generation_call": [{"type": "image_generation_call", "result": "AA", "status": "completed"}],
            "tool_search": [{"type": "tool_search_call", "call_id": "c", "arguments": {}},
                            {"type": "tool_search_output", "call_id": "c", "tools": []}],
            "compaction": [{"type": "compaction", "encrypted_content": "x"}],
            "compaction_summary": [{"type": "compaction_summary", "encrypted_content": "x"}],
        }, lambda items: self.assertEqual(self.text(self.respond([*items, user(SUM)])), SUM_ANSWER))

    def test_pictures(self):
        """Agents send screenshots with the text; the model is told that one was left out."""
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
        self.assertTrue(self.text(self.respond([user([{"type": "input_text", "text": SUM}, picture])])))
        output = {**self.OUTPUT, "output": [{"type": "input_text", "text": RESULT}, picture]}
        self.respond([self.QUESTION, self.CALL, output], tools=[FLAT_TOOL])

    def test_refusal(self):
        items = [user("Hi"), {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, user(SUM)]
        self.assertEqual(self.text(self.respond(items)), SUM_ANSWER)

    def test_namespace(self):
        tools = [{"type": "namespace", "name": "mcp", "description": "d", "tools": [FLAT_TOOL]}]
        self.assertEqual(self.respond([self.QUESTION], tools=tools)["output"][-1]["type"], "function_call")

    def test_empty_previous_response(self):
        self.assertEqual(self.text(self.respond(SUM, previous_response_id="")), SUM_ANSWER)


class Codex(Habits):
    """`codex --oss` from its start on: what it asks first, and the turns of a conversation as it streams them."""

    QUESTION, OUTPUT = Agents.QUESTION, Agents.OUTPUT
    TOOLS = [
        {**FLAT_TOOL, "output_schema": None}, {"type": "local_shell"}, {"type": "web_search", "external_web_access": False},
        {"type": "function", "name": "shell_command", "description": "Runs a shell command.", "strict": False, "parameters": {
            "type": "object", "properties": {"command": {"type": "string"}, "timeout_ms": {"type": "number"}},
            "required": ["command"], "additionalProperties": False}},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {
            "type": "grammar", "syntax": "lark", "definition": "start: begin_patch"}},
        {"type": "namespace", "name": "mcp__notes", "description": "Notes.", "tools": [
            {"type": "function", "name": "find", "description": "Finds a note.", "strict": False, "parameters": {
                "type": "object", "properties": {"text": {"type": "string"}}}}]}]
    BODY = {"instructions": "You are a coding agent.", "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
            "service_tier": None, "text": {"verbosity": "medium"}, "client_metadata": {"x-codex-installation-id": "0199"}}
    HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "originator": "codex_cli_rs", "session_id": "0199a213"}
    BEFORE = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions instructions>read-only"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"}]}]

    def turn(self, items, **options):
        """The items of a turn's output, as the stream has them."""
        body = {"model": MODEL, "input": [*self.BEFORE, *items], **self.BODY, **options}
        status, headers, data = self.server.call("POST", "/v1/responses", body, self.HEADERS)
        self.assertEqual((status, headers.get_content_type()), (200, "text/event-stream"), data)
        events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
        self.assertEqual((events[0]["type"], events[-1]["type"]), ("response.created", "response.completed"))
        self.assertGreater(events[-1]["response"]["usage"]["total_tokens"], 0)
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        self.assertEqual(done, events[-1]["response"]["output"])
        return done

    def test_start(self):
        version = json.loads(self.server.call("GET", "/api/version")[2])["version"]
        self.assertGreaterEqual(tuple(map(int, version.split("."))), (0, 13, 4))
        self.assertEqual([m["name"] for m in json.loads(self.server.call("GET", "/api/tags")[2])["models"]], [MODEL])
        self.assertEqual(self.server.call("GET", "/v1/models?client_version=0.99.0")[0], 200)

    def test_turns(self):
        """A call, its output, the answer, and a second question behind all of it."""
        first = self.turn([self.QUESTION], tool_choice={"type": "function", "name": "get_weather"})
        self.assertEqual([item["type"] for item in first][-1], "function_call")
        self.assertTrue(all(item["encrypted_content"] for item in first if item["type"] == "reasoning"))
        # The items that Codex keeps have no status, and those of reasoning no id.
        kept = [{key: value for key, value in item.items() if key not in ("status", *(["id"] if item["type"] == "reasoning" else []))}
                for item in first]
        history = [self.QUESTION, *kept, {**self.OUTPUT, "call_id": first[-1]["call_id"]}]
        second = self.turn(history)
        self.assertEqual(second[-1]["type"], "message")
        third = self.turn([*history, *second, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": SUM}]}])
        self.assertEqual(third[-1]["content"][0]["text"], SUM_ANSWER)

    def test_turns_of_other_tools(self):
        """A conversation that began with another model goes on here."""
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}
        self.each({
            "apply_patch": [{"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "*** Begin Patch", "status": "completed"},
                            {"type": "custom_tool_call_output", "call_id": "a", "output": "Exit code: 0\nSuccess."}],
            "local_shell": [{"type": "local_shell_call", "call_id": "a", "status": "completed", "action": {
                "type": "exec", "command": ["ls"], "timeout_ms": None, "working_directory": None, "env": None, "user": None}},
                {"type": "function_call_output", "call_id": "a", "output": "a.txt"}],
            "view_image": [{"type": "function_call", "call_id": "a", "name": "view_image", "arguments": '{"path": "a.png"}'},
                           {"type": "function_call_output", "call_id": "a", "output": [picture]}],
            "mcp": [{"type": "function_call", "call_id": "a", "name": "find", "namespace": "mcp__notes", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "none"}]}],
            "tool_search": [{"type": "tool_search_call", "call_id": "a", "execution": "client", "status": "completed",
                             "arguments": {"query": "notes", "limit": 5}},
                            {"type": "tool_search_output", "call_id": "a", "execution": "client", "status": "completed", "tools": [
                                {"type": "namespace", "name": "mcp__more", "description": "d", "tools": [FLAT_TOOL]}]}],
            "web_search": [{"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x", "queries": ["x"]}}],
            "a picture": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}, picture]},
                          {"type": "message", "role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "A cat."}]}],
            "phases": [{"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "Let me see."}]},
                       {"type": "function_call", "call_id": "a", "name": "shell_command", "arguments": '{"command": "ls"}'},
                       {"type": "function_call_output", "call_id": "a", "output": "a.txt"}],
            "an unknown call": [{"type": "function_call_output", "call_id": "lost", "name": "shell_command", "output": "a.txt"}],
            "reasoning of another": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "content": None, "encrypted_content": "gAAA"}],
            "compaction": [{"type": "compaction", "encrypted_content": "gAAA"}],
            "settings": [{"type": "configuration_update", "reasoning": {"effort": "low"}}],
        }, lambda items: self.assertEqual(self.turn([user("Hi"), *items, user(SUM)])[-1]["type"], "message"))

    def test_output_schema(self):
        form = {"type": "json_schema", "strict": True, "name": "codex_output_schema", "schema": {
            "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}}
        answer = self.turn([user(SUM)], text={"verbosity": "medium", "format": form})[-1]
        self.assertEqual(list(json.loads(answer["content"][0]["text"])), ["sum"])

    def test_too_long(self):
        """Codex looks for this error among a stream's events, and shortens the conversation."""
        body = {"model": MODEL, "input": [user("word " * 3000)], **self.BODY}
        text = self.server.call("POST", "/v1/responses", body, self.HEADERS)[2].decode()
        self.assertEqual(json.loads(text.split("data: ")[-1])["response"]["error"]["code"], "context_length_exceeded")


class Http(Habits):
    BODY = json.dumps({"model": MODEL, "messages": [user(SUM)], "temperature": 0}).encode()

    def raw(self, head, body):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as connection:
            connection.sendall(head.encode() + b"\r\n" + body)
            received = b""
            while b'"usage"' not in received and b'"error"' not in received:
                got = connection.recv(65536)
                if not got:
                    break
                received += got
        return received.decode()

    def post(self, *fields, protocol="HTTP/1.1", body=BODY, path="/v1/chat/completions"):
        lines = [f"POST {path} {protocol}", f"Host: 127.0.0.1:{self.server.port}", "Content-Type: application/json", *fields]
        if not any(field.startswith("Transfer-Encoding") for field in fields):
            lines.append(f"Content-Length: {len(body)}")
        return self.raw("\r\n".join(lines) + "\r\n", body)

    def test_protocols(self):
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(self.BODY), self.BODY)
        for answer in (self.post("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA"),  # Java
                       self.post("Connection: close", protocol="HTTP/1.0"),  # nginx as it comes
                       self.post("Transfer-Encoding: chunked", body=chunked)):  # Node
            self.assertRegex(answer, r"^HTTP/1\.[01] 200 ")
            self.assertIn(SUM_ANSWER, answer)
        expecting = self.post("Expect: 100-continue")  # curl with a long body
        self.assertTrue(expecting.startswith("HTTP/1.1 100 Continue\r\n"), expecting)
        self.assertIn(SUM_ANSWER, expecting)

    def test_bodies(self):
        for body in (b"\xef\xbb\xbf" + self.BODY, self.BODY + b"\r\n"):  # .NET, curl -d @file
            self.assertIn(SUM_ANSWER, self.post(body=body))

    def test_query(self):
        self.assertIn(SUM_ANSWER, self.post(path="/v1/chat/completions?api-version=2024-10-21"))
        self.assertEqual(self.server.call("GET", "/v1/models?client_version=0.99")[0], 200)

    def test_keyless(self):
        for field in ("Authorization: Bearer ", "Authorization: Bearer sk-x", "api-key: x"):
            self.assertIn(SUM_ANSWER, self.post(field))

    def test_compressed(self):
        self.assertIn(" 415 ", self.post("Content-Encoding: gzip", body=gzip.compress(self.BODY)).splitlines()[0])

    def test_slashes(self):
        for path in ("//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/"):
            self.assertIn(SUM_ANSWER, self.post(path=path))


if __name__ == "__main__":
    unittest.main()
