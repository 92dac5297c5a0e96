"""The page at the server's root, by keyboard alone, in a headless Chromium. Exit status 77 where there is none."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import browser  # noqa: E402
from served import Served  # noqa: E402

ENTER, ESCAPE = ("Enter", 13), ("Escape", 27)
TOOL = '[{"type":"function","function":{"name":"get_weather","description":"Gets the weather of a city.",' \
       '"parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]'


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served("--log", "quiet", context=8192).wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        self.page = browser.Browser(self.server.url)
        self.page.until("typeof model === 'string' && model === 'tiny'")
        self.page.value("(temperature => { $('temperature').value = 0; $('message').focus() })()")

    def tearDown(self):
        self.page.close()

    def ask(self, text):
        self.page.type(text)
        self.page.press(*ENTER)

    def answered(self, count):
        self.page.until(f"!running && document.querySelectorAll('article.assistant .foot button').length === {count}")

    def last(self, what):
        return self.page.value(f"[...document.querySelectorAll('article.assistant {what}')].at(-1)?.textContent")

    def test_answer(self):
        self.ask("What is 17 + 25?")
        self.answered(1)
        self.assertIn("42", self.last(".text"))
        self.assertFalse(self.page.value("document.querySelector('details').open"))
        self.assertIn("17", self.last("details"))
        self.assertRegex(self.last(".foot"), r"\d+ tokens, [\d.]+ tok/s, first after [\d.]+ s")
        self.page.until(r"/^tiny · \d+ running, \d+ waiting/.test($('loadtext').textContent)")
        self.page.value("document.querySelector('.foot button').click()")
        self.answered(1)
        self.assertIn("42", self.last(".text"))
        self.ask("What is 2 + 3?")
        self.answered(2)
        self.assertEqual(self.page.value("messages.length"), 4)

    def test_stop(self):
        names = "<|return|><|call|><|endoftext|>"
        stops = self.server.post("/tokenize", {"prompt": names, "parse_special": True})[1]["tokens"]
        endless = json.dumps({str(token): -100 for token in stops})
        self.page.value(f"void (made => request = () => ({{...made(), logit_bias: {endless}}}))(request)")
        self.ask("Tell me a long story.")
        self.page.until("document.querySelector('.foot')?.textContent.includes('tokens')")
        self.page.press(*ESCAPE)
        self.answered(1)
        self.assertIn("stopped", self.last(".foot"))
        self.server.until("vllm:num_requests_running", 0)

    def test_tool(self):
        self.page.value(f"$('tools').value = {TOOL!r}")
        self.ask("What is the weather in Paris?")
        self.answered(1)
        self.assertIn("get_weather(", self.last(".call"))
        self.page.type('{"weather": "sunny", "degrees": 21}')
        self.page.press(*ENTER)
        self.answered(2)
        self.assertIn("21", self.last(".text"))

    def test_nothing_becomes_html(self):
        self.ask("<img src=x onerror=alert(1)>")
        self.answered(1)
        self.assertEqual(self.page.value("document.querySelectorAll('main img').length"), 0)

    def test_settings_and_new(self):
        self.page.press("s", 83, modifiers=1)
        self.assertFalse(self.page.value("$('settings').hidden"))
        self.ask("What is 2 + 3?")
        self.answered(1)
        self.page.press("n", 78, modifiers=1)
        self.assertEqual(self.page.value("document.querySelectorAll('article').length"), 0)

    def test_phone(self):
        self.page.call("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=2, mobile=True)
        self.assertLessEqual(self.page.value("document.documentElement.scrollWidth"), 360)

    def test_dark(self):
        colours = set()
        for scheme in ("light", "dark"):
            self.page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            colours.add(self.page.value("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(colours), 2)


if __name__ == "__main__":
    if not browser.find():
        print("skipped: there is no chromium on this machine")
        sys.exit(77)
    unittest.main()
