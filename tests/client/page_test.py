"""The page at the server's root with models/tiny, by keyboard alone, in a headless Chromium. Exit status 77 where there is
none."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import ALT, CTRL, ENTER, ESCAPE, Case, main  # noqa: E402

TOOL = '[{"type":"function","function":{"name":"get_weather","description":"Gets the weather of a city.",' \
       '"parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]'


class Page(Case):
    stubbed = False
    context = 8192

    def set(self, **settings):
        """As a reader would have: kept in the browser."""
        self.value(f"localStorage.setItem('moesaic.settings', JSON.stringify({json.dumps(settings)}))")
        self.reload()

    def setUp(self):
        super().setUp()
        self.set(temperature="0")

    def test_answer(self):
        self.ask("What is 17 + 25?")
        self.assertIn("42", self.text(".assistant .body"))
        self.assertFalse(self.value("$('.thought').open"))
        self.value("$('.thought summary').click()")
        self.until("$('.thought .markdown').innerText.includes('17')")
        self.assertRegex(self.text(".assistant .stats"), r"\d+ tokens · [\d.]+ tok/s · first after [\d.]+ s · prompt \d+")
        self.ask("What is 2 + 3?")
        self.assertIn("5", self.text(".assistant .body"))
        self.assertRegex(self.text("#context"), r"^\d+ of 8,192$")

    def test_server_is_shown(self):
        self.assertRegex(self.text("#server-device"), r"8,192 tokens of context")
        self.until(r"/^(idle|\d+ running).* · cache \d+%/.test($('#server-load').textContent)")

    def test_stop_is_the_send_button(self):
        names = "<|return|><|call|><|end|><|endoftext|>"  # else another role's message may begin, which ends an answer
        stops = self.server.post("/tokenize", {"prompt": names, "parse_special": True})[1]["tokens"]
        self.set(other=json.dumps({"logit_bias": {str(token): -100 for token in stops}}))
        for way in (lambda: self.page.press(*ESCAPE), lambda: self.click("#send")):
            self.type("Tell me a long story.")
            self.page.press(*ENTER)
            self.until("$('#send').dataset.name === 'stop' && $$('.assistant .thought').at(-1)?.hidden === false")
            way()
            self.idle()
            self.assertIn("Stopped", self.text(".assistant .foot"))
            self.server.until("vllm:num_requests_running", 0)
            prompt, tokens = (int(re.search(words, self.text(".assistant .stats"))[1]) for words in (r"prompt (\d+)", r"^(\d+) tokens?"))
            self.assertEqual(self.text("#context"), f"{prompt + tokens:,} of 8,192")
            self.assertGreater(prompt, 50)
        answers = self.count(".assistant")
        self.click(".go-on")
        self.until("!$$('.assistant .foot').at(-1).innerText.includes('Stopped')")
        self.until("$$('.assistant').at(-1).querySelector('.stats')?.innerText.includes('token')")
        self.page.press(*ESCAPE)
        self.idle()
        self.assertEqual(self.count(".assistant"), answers)
        self.assertGreater(int(re.search(r"^(\d+) tokens", self.text(".assistant .stats"))[1]), tokens)

    def test_tool(self):
        self.set(temperature="0", tools=TOOL)
        self.ask("What is the weather in Paris?")
        self.assertIn("get_weather(", self.text(".call"))
        self.page.type('{"weather": "sunny", "degrees": 21}')   # the field has the focus
        self.page.press(*ENTER)
        self.until("$$('.assistant').length === 2 && $('#send').dataset.name === 'send'")
        self.assertIn("21", self.text(".assistant .body"))
        self.assertEqual(self.count(".call textarea"), 0)

    def test_schema(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}
        self.set(temperature="0", schema=json.dumps(schema))
        self.ask("What is 17 + 25? As JSON.")
        self.assertIsInstance(json.loads(self.text(".assistant .body"))["sum"], int)

    def test_too_long_does_not_poison(self):
        self.ask("word " * 9000)
        self.assertIn("Not sent:", self.text(".user .foot"))
        self.assertEqual(self.count(".assistant"), 0)
        self.ask("What is 2 + 3?")
        self.assertIn("5", self.text(".assistant .body"))

    def test_shortcuts(self):
        self.page.press("s", 83, modifiers=ALT)
        self.assertTrue(self.value("$('#settings').open"))
        self.page.press(*ESCAPE)
        self.until("!$('#settings').open")
        self.ask("What is 2 + 3?")
        self.page.press("n", 78, modifiers=ALT)
        self.until("$$('.message').length === 0 && document.activeElement.id === 'message'")
        self.page.press("k", 75, modifiers=CTRL)
        self.assertEqual(self.value("document.activeElement.id"), "search")

    def test_files_are_kept_and_policed(self):
        status, headers, body = self.server.call("GET", "/")
        policy = headers["Content-Security-Policy"]
        self.assertEqual((status, headers["Cache-Control"]), (200, "no-cache"))
        for word in ("unsafe-inline", "unsafe-eval", "http:", "https:", "data:", "*"):
            self.assertNotIn(word, policy)
        script = self.value("new URL($('script').src).pathname")
        status, headers, body = self.server.call("GET", script)
        self.assertEqual((status, headers["Content-Encoding"], headers["Content-Type"]),
                         (200, "gzip", "text/javascript; charset=utf-8"))
        self.assertIn("immutable", headers["Cache-Control"])
        for path in ("/page/000000000000/main.js", script + "x", "/page/", script.replace("main.js", "../page.h"),
                     script.replace("main.js", "")):
            self.assertEqual(self.server.call("GET", path)[0], 404, path)
        self.assertEqual(self.server.call("POST", script, "")[0], 405)


if __name__ == "__main__":
    main()
