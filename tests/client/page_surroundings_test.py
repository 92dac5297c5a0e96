"""The page in surroundings that are not as on its author's machine: a proxy that places it in a folder, the browser's Back, a server
that comes back with another model, files that do not arrive, input methods, a Mac's keyboard, a screen as narrow as the
smallest. Exit status 77 where there is no Chromium."""

import json
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import ENTER, Case, main  # noqa: E402
from stub import Stub  # noqa: E402

LOST = {"Content-Type": "application/json"}


class Surroundings(Case):
    def answer_of(self, path, status, body):
        """What the server says to a path until the test ends."""
        self.stub.kept[path] = (status, LOST, body.encode())
        self.addCleanup(self.stub.kept.pop, path, None)

    def title(self):
        return self.value("$('#title').textContent")

    def test_back_and_forward(self):
        self.ask("one", "1")
        self.value("$('#new').click()")
        self.ask("two", "2")
        self.value("$$('#list .open').find(b => b.textContent === 'one').click()")
        self.until("$('#title').textContent === 'one'")
        for steps, title in ((-1, "two"), (-1, "one"), (1, "two"), (1, "one")):
            self.value(f"history.go({steps})")
            self.until(f"$('#title').textContent === {title!r}")
            self.until(f"$$('.user .body').length === 1 && $('.user .body').innerText === {title!r}")
        self.reload()
        self.assertEqual(self.title(), "one")

    def test_back_to_what_was_deleted(self):
        self.ask("one", "1")
        self.value("$('#new').click()")
        self.ask("two", "2")
        self.menu("#list .row:last-child .round", "Delete")
        self.until("$$('#list .open').length === 1")
        self.value("history.back()")
        self.until("$('#title').textContent === 'New conversation' && $$('.message').length === 0")
        self.ask("three", "3")
        self.assertEqual(self.title(), "three")

    def test_a_question_of_the_address_is_written_once(self):
        self.load("?q=What%20is%20this%3F")
        self.assertEqual(self.value("$('#message').value"), "What is this?")
        self.stub.answers.append({"content": "that"})
        self.value("$('#message').focus()")
        self.page.press(*ENTER)
        self.idle("What is this?")
        self.reload()
        self.assertEqual((self.value("$('#message').value"), self.title(), self.value("location.search")), ("", "What is this?", ""))

    def test_in_a_folder_of_a_proxy(self):
        proxy = Stub(self.server.url, prefix="/ai/chat")
        self.addCleanup(proxy.stop)
        proxy.answers.append({"content": "from the *folder*"})
        self.page.call("Page.navigate", url=proxy.url)
        self.ready()
        self.type("one")
        self.page.press(*ENTER)
        self.idle("one")
        self.assertEqual(self.text(".assistant .body"), "from the folder")
        self.page.call("Page.reload")
        self.ready()
        self.assertEqual(self.text(".assistant .body"), "from the folder")
        self.assertEqual([path for path in proxy.asked if not path.startswith("/ai/chat/")], [])
        self.page.call("Storage.clearDataForOrigin", origin=proxy.url.split("/ai")[0], storageTypes="all")

    def test_another_model_behind_the_same_address(self):
        info = json.loads(self.stub.get("/server_info")[2])
        metrics = self.stub.get("/metrics")[2].decode()
        self.answer_of("/metrics", 502, "<html>Bad Gateway</html>")
        self.until("$('#server-device').textContent === 'The server cannot be reached'")
        loading = json.dumps({"error": {"message": "the model is being loaded (42%)", "code": "model_loading"}})
        self.answer_of("/server_info", 503, loading)
        self.answer_of("/metrics", 200, metrics)
        self.until("$('#server-device').textContent.includes('(42%)')")
        self.answer_of("/server_info", 200, json.dumps({**info, "model": 'an "odd" model'}))
        self.answer_of("/metrics", 200, metrics.replace('"tiny"', r'"an \"odd\" model"'))
        self.until("$('#server-model').textContent === 'an \"odd\" model' && $('#server-load').textContent.startsWith('idle')")
        asked = self.stub.asked.count("/server_info")
        self.ask("one", "1")
        self.assertEqual(self.stub.bodies[-1]["model"], 'an "odd" model')
        polls = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/metrics')).length"
        self.until(f"{polls} >= {self.value(polls) + 2}")
        self.assertEqual(self.stub.asked.count("/server_info"), asked)

    def test_a_call_that_was_cut_off_asks_for_no_result(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        begun = [{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"path": "a'}}]}]
        self.stub.answers.append({"deltas": begun, "gate": gate})
        self.type("one")
        self.page.press(*ENTER)
        self.until("$('.call code')?.innerText.includes('path')")
        self.click("#send")
        self.idle("one")
        self.assertIn("Stopped", self.text(".assistant .foot"))
        self.assertEqual((self.count(".call textarea"), self.count(".go-on")), (0, 0))
        self.ask("two", deltas=begun, finish="length")
        self.assertEqual(self.count(".call textarea"), 0)
        self.ask("three", "3")
        self.assertNotIn("tool_calls", json.dumps(self.stub.bodies[-1]))

    def test_without_the_files_of_markdown(self):
        [path] = {path for path in self.stub.kept if path.endswith("/library/marked.js")}
        kept = self.stub.kept[path]
        self.addCleanup(self.stub.kept.__setitem__, path, kept)
        self.stub.kept[path] = (502, LOST, b"")
        self.page.call("Network.setCacheDisabled", cacheDisabled=True)
        self.addCleanup(self.page.call, "Network.setCacheDisabled", cacheDisabled=False)
        self.reload()
        self.ask("one", "*1*")
        self.assertEqual(self.text(".assistant .body"), "*1*")

    def test_without_a_network(self):
        self.ask("one", "1")
        self.page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        try:
            self.until("$('#server-device').textContent === 'The server cannot be reached'")
            self.ask("two")
            self.assertIn("Not sent: the server cannot be reached", self.text(".user .foot"))
            self.assertEqual(self.text(".assistant .body"), "1")
        finally:
            self.page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        self.until("$('#server-device').textContent.includes('of context')")
        self.stub.answers.append({"content": "2"})
        self.click(".user [aria-label='Send again']")
        self.until("$('.assistant:last-child .body')?.innerText === '2' && $('#send').dataset.name === 'send'")
        self.assertEqual([m["content"] for m in self.stub.bodies[-1]["messages"]], ["one", "1", "two"])

    def test_packets_that_end_within_a_character(self):
        text = "Straße 世界 👨‍👩‍👧 `ñ` e\u0301\n\n- naïve"
        for size in (1, 3, 7):
            self.ask(f"in pieces of {size}", deltas=[{"content": text[:9]}, {"content": text[9:]}], pieces=size)
            self.assertEqual(self.text(".assistant .body").split(), text.replace("`", "").replace("- ", "").split())

    def key(self, selector, **fields):
        """A key that the test makes itself, as an input method does."""
        self.value(f"$({selector!r}).dispatchEvent(new KeyboardEvent('keydown', {{bubbles: true, cancelable: true, ...{json.dumps(fields)}}}))")

    def test_keys_of_input_methods_do_nothing_else(self):
        self.ask("one", "1")
        self.type("two")
        self.value("$('.user .tools [aria-label=Edit]').click()")
        self.menu("#list .current .round", "Rename")
        gate = threading.Event()
        self.addCleanup(gate.set)
        for fields in ({"isComposing": True}, {"keyCode": 229}):
            for selector in ("#message", ".editor textarea", "#list input"):
                for key in ("Enter", "Escape"):
                    self.key(selector, key=key, **fields)
        self.assertEqual((self.count(".message"), self.count(".editor"), self.count("#list input")), (2, 1, 1))
        self.stub.answers.append({"content": "2", "gate": gate})
        self.value("$('#message').focus()")
        self.page.press(*ENTER)
        self.until("$('#send').dataset.name === 'stop'")
        self.key("#message", key="Escape", keyCode=229)
        gate.set()
        self.idle("two")
        self.assertEqual(self.count(".trouble"), 0)

    def test_option_writes_letters_on_a_mac(self):
        agent = self.value("navigator.userAgent")
        for platform, open_ in (("MacIntel", False), ("Linux x86_64", True)):
            self.page.call("Emulation.setUserAgentOverride", userAgent=agent, platform=platform)
            self.reload()
            self.key("#message", key="ś", code="KeyS", altKey=True)
            self.assertEqual(self.value("$('#settings').open"), open_)
            self.value("$('#settings').close()")
        self.page.call("Emulation.setUserAgentOverride", userAgent=agent)

    def test_an_api_key_that_no_header_can_carry(self):
        self.value("$('#api-key').value = 'schlüssel', $('#api-key').dispatchEvent(new Event('change'))")
        self.value("$('#api-key').value = 'ключ', $('#api-key').dispatchEvent(new Event('change'))")
        self.assertIn("no API key", self.value("$('#api-key').validationMessage"))
        self.assertEqual(self.value("sessionStorage.getItem('moesaic.key')"), "schlüssel")
        self.ask("one", "1")
        self.assertEqual(self.text(".assistant .body"), "1")

    def test_a_screen_of_280_pixels(self):
        self.page.call("Emulation.setDeviceMetricsOverride", width=280, height=600, deviceScaleFactor=2, mobile=True)
        self.ask("W" * 300, "# " + "H" * 90 + "\n\n`" + "c" * 200 + "`\n\n|" + "a|" * 20 + "\n|" + "-|" * 20 + "\n\n" + "世" * 90)
        self.assertEqual(self.value("document.scrollingElement.scrollWidth"), 280)
        self.click("#open-settings")
        self.until("$('#settings').open")
        self.assertLessEqual(self.value("$('#settings').getBoundingClientRect().right"), 280)
        self.assertLessEqual(self.value("$('#settings-body').scrollWidth - $('#settings-body').clientWidth"), 0)
        self.click("#settings .dialog-top button")

    def test_a_paste_of_three_megabytes(self):
        self.value("""(() => {
          const data = new DataTransfer();
          data.setData('text/plain', 'word '.repeat(600000));
          $('#message').dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}));
        })()""")
        self.until("$$('#files .chip').length === 1")
        self.ask("What is this?", "words")
        self.assertEqual(len(self.stub.bodies[-1]["messages"][0]["content"].split()) // 1000, 600)
        self.reload()
        self.assertEqual(self.text(".assistant .body"), "words")


if __name__ == "__main__":
    main()
