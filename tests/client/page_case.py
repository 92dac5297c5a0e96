"""What the tests of the page have in common: one Chromium and one server for a class, an empty browser for each test. A test
fails by itself if the page throws, logs an error or breaks its own Content-Security-Policy."""

import base64
import contextlib
import gzip
import json
import pathlib
import re
import sys
import unittest

import browser
from served import Served
from stub import Stub

ENTER, ESCAPE, UP, DOWN = ("Enter", 13), ("Escape", 27), ("ArrowUp", 38), ("ArrowDown", 40)
ALT, CTRL, SHIFT = 1, 2, 8
HELPERS = """
    globalThis.$ = selector => document.querySelector(selector);
    globalThis.$$ = selector => [...document.querySelectorAll(selector)];
    globalThis.broken = [];
    addEventListener("securitypolicyviolation", event => broken.push(`${event.effectiveDirective} ${event.blockedURI}`));
"""


def has_libraries(server):
    page = server.call("GET", "/")[2].decode()
    folder = re.search(r'src="(page/\w+/)main.js"', page)[1]
    return b"false" not in gzip.decompress(server.call("GET", f"/{folder}library/libraries.js")[2])


class Case(unittest.TestCase):
    stubbed = True      # chats are answered by the test, not by the model
    context = 1024

    @classmethod
    def setUpClass(cls):
        cls.server = Served("--log", "quiet", context=cls.context).wait_ready()
        if cls.stubbed and not has_libraries(cls.server):
            cls.server.stop()
            raise unittest.SkipTest("the program was built without the page's libraries (docs/design/page.md)")
        cls.stub = Stub(cls.server.url) if cls.stubbed else None
        cls.url = cls.stub.url if cls.stubbed else cls.server.url + "/"
        cls.page = cls.prepared(browser.Browser("about:blank", size="1100,800"))

    @staticmethod
    def prepared(tab):
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            tab.call(domain + ".enable")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=HELPERS)
        return tab

    @contextlib.contextmanager
    def tab(self, tab):
        """All that the test does within is done in that tab."""
        before, self.page = self.page, tab
        try:
            yield
        finally:
            self.page = before

    def another_tab(self, query=""):
        tab = self.prepared(self.page.another())
        with self.tab(tab):
            self.load(query)
        self.addCleanup(self.leave, tab)
        return tab

    def leave(self, tab):
        if tab.is_open():
            with self.tab(tab):
                self.assertEqual(self.troubles(), [])
            tab.leave()

    @classmethod
    def tearDownClass(cls):
        cls.page.close()
        if cls.stub:
            cls.stub.stop()
        cls.server.stop()

    def setUp(self):
        self.page.call("Page.navigate", url="about:blank")
        self.page.call("Storage.clearDataForOrigin", origin=self.url.rstrip("/"), storageTypes="all")
        self.page.events.clear()
        if self.stub:
            self.stub.answers.clear()
            self.stub.bodies.clear()
            self.stub.asked.clear()
        self.load()

    def load(self, query=""):
        self.page.call("Page.navigate", url=self.url + query)
        self.ready()

    def reload(self):
        self.page.call("Page.reload")
        self.ready()

    def ready(self):
        self.page.until("location.href !== 'about:blank' && document.documentElement?.dataset.ready === 'true' && "
                        "$('#server-model').textContent === 'tiny'")

    def tearDown(self):
        self.page.call("Emulation.clearDeviceMetricsOverride")
        self.page.call("Emulation.setEmulatedMedia", features=[])
        self.assertEqual(self.troubles(), [])

    def troubles(self):
        """What the page has thrown, logged as an error, or tried against its policy."""
        found = list(self.value("broken"))
        for event in self.page.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"])
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        self.page.events.clear()
        # Refused requests that a test asks for are no trouble.
        return [trouble for trouble in found if "Failed to load resource" not in str(trouble)]

    def value(self, expression):
        return self.page.value(expression)

    def until(self, expression, seconds=60):
        return self.page.until(f"(async () => !!await ({expression}))()", seconds)

    def count(self, selector):
        return self.value(f"$$({selector!r}).length")

    def text(self, selector):
        """Of the last such element, as it is shown."""
        return self.value(f"$$({selector!r}).at(-1)?.innerText")

    def click(self, selector):
        self.value(f"$$({selector!r}).at(-1).click()")

    def press(self, selector):
        """By the mouse: what is covered or inert cannot be pressed."""
        at = self.value(f"""(() => {{
            const button = $$({selector!r}).at(-1);
            button.scrollIntoView({{block: 'nearest'}});
            const box = button.getBoundingClientRect(), [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
            return button.contains(document.elementFromPoint(x, y)) && {{x, y}};
        }})()""")
        self.assertTrue(at, f"{selector} cannot be pressed")
        for kind in ("mousePressed", "mouseReleased"):
            self.page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def type(self, text):
        self.value("$('#message').focus()")
        self.page.type(text)

    def ask(self, text, content=None, **answer):
        """Sends text; content or another answer of the stub is what comes back. Waits for its end."""
        if content is not None:
            answer["content"] = content
        if answer:
            self.stub.answers.append(answer)
        self.type(text)
        self.page.press(*ENTER)
        self.idle(text)

    def idle(self, sent=""):
        self.until(f"$('#send').dataset.name === 'send' && !$('[aria-busy]') && $$('.user .body').length > 0 && "
                   f"!$('#message').value.includes({sent.strip()[:40]!r} || '\\0')")

    def menu(self, button, item):
        self.click(button)
        self.value(f"$$('.menu button').find(b => b.textContent === {item!r}).click()")

    def messages(self):
        """What was sent last, as (role, content)."""
        return [(m["role"], m["content"]) for m in self.stub.bodies[-1]["messages"]]

    def titles(self):
        return self.value("$$('#list .open').map(b => b.textContent)")

    def until_titles(self, titles):
        self.until(f"JSON.stringify($$('#list .open').map(b => b.textContent)) === {json.dumps(json.dumps(titles, separators=(',', ':')))}")

    def in_another_tab(self, change):
        """Another tab of this page changes `conversation`, saves it, and says so."""
        self.value(f"""new Promise(done => indexedDB.open('moesaic').onsuccess = event => {{
            const store = event.target.result.transaction('conversations', 'readwrite').objectStore('conversations');
            store.getAll().onsuccess = found => {{
              const [conversation] = found.target.result;
              {change};
              store.put(conversation).onsuccess = () => {{
                new BroadcastChannel('moesaic').postMessage(conversation.id);
                event.target.result.close();
                done();
              }};
            }};
        }})""")

    def phone(self):
        self.page.call("Emulation.setDeviceMetricsOverride", width=360, height=720, deviceScaleFactor=2, mobile=True)

    def scheme(self, name):
        self.page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, file):
        data = self.page.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(file).write_bytes(base64.b64decode(data))


def main():
    if not browser.find():
        print("skipped: there is no chromium on this machine")
        sys.exit(77)
    unittest.main()
