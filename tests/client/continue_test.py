"""continue_final_message: an answer that goes on with the last message, with models/tiny. And continuous_usage_stats."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from served import Served  # noqa: E402

ASK = {"role": "user", "content": "What is 17 + 25?"}
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False, "temperature": 0, "seed": 1}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def of_assistant(**message):
    return {"role": "assistant", **message}


class Continue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served("--log", "quiet").wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def chat(self, *messages, **fields):
        status, answer = self.server.post("/v1/chat/completions", {"messages": [ASK, *messages], "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"], answer

    def events(self, path="/v1/chat/completions", **fields):
        status, _, data = self.server.call("POST", path, {"stream": True, "temperature": 0, **fields})
        self.assertEqual(status, 200, data)
        return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]

    def test_every_cut_of_an_answer_goes_on_to_the_same_end(self):
        whole = self.chat()[0]
        for at in range(1, len(whole["content"])):
            begin = of_assistant(reasoning_content=whole["reasoning_content"], content=whole["content"][:at])
            more, answer = self.chat(begin, **CONTINUE)
            self.assertNotIn("reasoning_content", more)
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
            self.assertIn("42", begin["content"] + more["content"])

    def test_a_thought_goes_on(self):
        whole = self.chat()[0]
        half = whole["reasoning_content"][:len(whole["reasoning_content"]) // 2]
        for begin in (of_assistant(reasoning_content=half), of_assistant(reasoning=half, content=""), of_assistant(reasoning=half, content=None)):
            more = self.chat(begin, **CONTINUE)[0]
            self.assertTrue(more["reasoning_content"] and not more["reasoning_content"].startswith(half), more)
            self.assertTrue(more["content"])

    def test_the_prompt_ends_in_the_message(self):
        status, answer = self.server.post("/apply-template", {"messages": [ASK, of_assistant(reasoning="Hm.", content="It is")], **CONTINUE})
        self.assertEqual(status, 200, answer)
        self.assertTrue(answer["prompt"].endswith("<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
                                                  "<|start|>assistant<|channel|>final<|message|>It is"), answer["prompt"])

    def test_streamed_it_is_the_same(self):
        begin = of_assistant(content="17 + 25 =")
        chunks = self.events(messages=[ASK, begin], **CONTINUE)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        self.assertEqual(text, self.chat(begin, **CONTINUE)[0]["content"])
        self.assertIn("42", text)

    def test_what_cannot_be_honoured_is_refused(self):
        begin = of_assistant(content="It is")
        call = of_assistant(content="It is", tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}])
        for messages, fields, words in [
                ([ASK], {}, "not the assistant's"),
                ([ASK, begin, ASK], {}, "not the assistant's"),
                ([ASK, begin, {"role": "system", "content": "x"}], {}, "not the assistant's"),
                ([ASK, call], {}, "calls a tool"),
                ([ASK, call, {"role": "tool", "tool_call_id": "c", "content": "1"}], {}, "not the assistant's"),
                ([ASK, of_assistant(content="")], {}, "no text"),
                ([ASK, of_assistant(content=None)], {}, "no text"),
                ([ASK, begin], {"add_generation_prompt": True}, "add_generation_prompt"),
                ([ASK, begin], {"continue_final_message": False}, "add_generation_prompt"),
                ([ASK, begin], {"continue_final_message": "yes"}, "continue_final_message"),
                ([ASK, begin], {"response_format": FORM}, "goes on as text"),
                ([{"role": "user", "content": [{"type": "image_url"}]}, begin], {}, "image_url"),
                ([ASK, begin], {"tools": [TOOL], "tool_choice": "required"}, "goes on as text")]:
            status, answer = self.server.post("/v1/chat/completions", {"messages": messages, **CONTINUE, **fields})
            self.assertEqual(status, 400, (messages, fields, answer))
            self.assertIn(words, json.dumps(answer["error"]))

    def test_tools_may_be_offered(self):
        self.assertIn("42", self.chat(of_assistant(content="17 + 25 ="), tools=[TOOL], **CONTINUE)[0]["content"])

    def test_stop_strings_and_limits_count_in_what_is_added(self):
        begin = of_assistant(content="17 + 25 =")
        more, answer = self.chat(begin, max_tokens=1, **CONTINUE)
        self.assertEqual((answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]), ("length", 1))
        self.assertNotIn("42", self.chat(begin, stop=["2"], **CONTINUE)[0]["content"])

    def test_other_apis_always_go_on(self):
        messages = [ASK, of_assistant(content="17 + 25 =")]
        text = self.chat(messages[1], **CONTINUE)[0]["content"]
        body = {"model": "tiny", "messages": messages}
        status, answer = self.server.post("/v1/messages", {**body, "max_tokens": 100, "temperature": 0})
        self.assertEqual((status, answer["content"]), (200, [{"type": "text", "text": text, "citations": None}]))
        ollama = {**body, "stream": False, "options": {"temperature": 0}}
        status, answer = self.server.post("/api/chat", ollama)
        self.assertEqual((status, answer["message"]), (200, {"role": "assistant", "content": text}))
        thought = {**ollama, "messages": [ASK, of_assistant(content="", thinking="17 + 25 =")]}
        self.assertIn("42", self.server.post("/api/chat", thought)[1]["message"]["content"])
        whole = self.server.post("/api/chat", {**ollama, "messages": [ASK]})[1]["message"]
        self.assertEqual(self.server.post("/api/chat", {**ollama, "messages": [ASK, of_assistant(content="")]})[1]["message"], whole)
        status, answer = self.server.post("/api/chat", {**ollama, "format": "json"})
        self.assertEqual(status, 400)
        self.assertIn("goes on as text", answer["error"])

    def test_usage_of_each_chunk(self):
        for path, prompt in [("/v1/chat/completions", {"messages": [ASK]}), ("/v1/completions", {"prompt": "One, two,", "max_tokens": 9})]:
            options = {"include_usage": True, "continuous_usage_stats": True}
            *chunks, last = self.events(path, stream_options=options, **prompt)
            usages = [chunk["usage"] for chunk in chunks]
            self.assertEqual({usage["prompt_tokens"] for usage in usages}, {last["usage"]["prompt_tokens"]})
            counts = [usage["completion_tokens"] for usage in usages]
            self.assertEqual(counts, sorted(counts))
            self.assertEqual(usages[-1], last["usage"])
            alone = self.events(path, stream_options={"continuous_usage_stats": True}, **prompt)
            self.assertFalse(any("usage" in chunk for chunk in alone))


if __name__ == "__main__":
    unittest.main()
