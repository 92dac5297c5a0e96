"""The page with what it did not write itself: conversations from files, settings of another version, calls and model names
of a server, a browser without room or storage. Exit status 77 where there is no Chromium."""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import Case, ENTER, ESCAPE, main  # noqa: E402

XSS = "<img src=x onerror=hacked=1><svg onload=hacked=1>"


def file_of(*conversations):
    return json.dumps({"format": "moesaic conversations", "version": 1, "conversations": conversations})


def chain(count):
    return {f"n{i}": {"role": "assistant" if i % 2 else "user", "content": f"m{i}", "time": i,
                      "parent": f"n{i - 1}" if i else None} for i in range(count)}


class Hostile(Case):
    def import_text(self, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "file.json"
            file.write_text(text)
            document = self.page.call("DOM.getDocument")["root"]["nodeId"]
            node = self.page.call("DOM.querySelector", nodeId=document, selector="#import-file")["nodeId"]
            self.value("$('#toast').hidden = true")
            self.page.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])
            self.until("!$('#toast').hidden")
        return self.text("#toast")

    def no_script(self):
        self.assertEqual(self.value("[typeof globalThis.hacked, $$('#thread img, #thread svg:not(.icon), #list img').length]"), ["undefined", 0])

    def test_files_of_wrong_types(self):
        for conversation in (None, 5, "text", [], {"nodes": 5}, {"nodes": "ab"}, {"nodes": [1]}, {"nodes": {"a": None}}):
            said = self.import_text(file_of(conversation))
            self.assertRegex(said, "^(Conversation 1 cannot be read: [^\n]*|1 imported)", conversation)
            self.assertNotRegex(said, "undefined|Cannot read properties|is not a function")

    def test_a_file_of_odd_values_is_shown(self):
        odd = {"role": "assistant", "content": XSS, "parent": "a", "stats": {}, "time": 1e300, "finish": XSS, "error": XSS,
               "calls": [{"name": XSS, "arguments": XSS, "id": 5}, None, 7]}
        self.import_text(file_of({"title": XSS, "created": 1e300, "changed": -1e300, "pinned": "yes", "leaf": "toString",
                                  "nodes": {"a": {"role": "user", "content": XSS}, "null": {**odd, "stats": {"rate": 1, "first": 2}},
                                            "constructor": odd}}))
        self.click("#list .open")
        self.until("$$('.message').length > 1")
        self.no_script()
        self.assertNotIn("undefined", self.text("#thread"))

    def test_what_came_of_a_file_is_said_in_front_of_the_settings(self):
        self.click("#open-settings")
        self.assertIn("1 imported", self.import_text(file_of({"nodes": chain(2)})))
        self.press("#toast")
        self.page.press(*ESCAPE)
        self.until("!$('#settings').open && !$('#toast').closest('dialog')")
        self.press("#toast")

    def test_a_deep_and_a_huge_file(self):
        self.assertIn("not JSON", self.import_text("[" * 2_000_000))
        self.assertIn("1 imported", self.import_text(file_of({"title": "long", "nodes": chain(4000)})))
        self.click("#list .open")
        self.until("$$('.message').length === 4000")
        self.assertIn("too many messages", self.import_text(file_of({"nodes": chain(200_000)})))

    def test_calls_and_names_of_a_server(self):
        call = {"index": 0, "id": "\"><img>", "function": {"name": XSS, "arguments": json.dumps({"a": XSS})}}
        self.ask("call", deltas=[{"reasoning_content": XSS}, {"tool_calls": [call]}], finish="tool_calls")
        self.no_script()
        self.assertIn("<img", self.text("#thread"))

    def test_settings_of_another_version(self):
        for kept in ('{"stop": 5, "system": {"a": 1}, "tools": [1], "schema": 7, "effort": null, "theme": 9, "temperature": {}}', '"text"', "5", "[1]", "{"):
            self.value(f"localStorage.setItem('moesaic.settings', {kept!r}), localStorage.setItem('moesaic.presets', {kept!r})")
            self.reload()
            self.ask("hello", "fine")
            self.assertEqual(self.text(".assistant .body"), "fine", kept)

    def test_settings_that_are_no_setting(self):
        for name, text, words in (("schema", '{"title": 5, "type": "object"}', None), ("schema", "[]", "JSON schema"), ("tools", "{}", "Tools"),
                                  ("other", '"text"', "Other fields"), ("other", "[1]", "Other fields"), ("tools", "{", "not JSON")):
            self.value(f"localStorage.setItem('moesaic.settings', JSON.stringify({{{name}: {text!r}}}))")
            self.load()
            self.type("hello")
            self.stub.answers[:] = [{"content": "fine"}]
            self.page.press(*ENTER)
            self.until("$('#send').dataset.name === 'send' && $$('.user .body').length > 0 && $$('.assistant .body, .user.refused').length > 0")
            self.assertIn(words or "fine", self.text(".refused .foot" if words else ".assistant .body"), text)

    def test_a_browser_without_room(self):
        self.value("Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }")
        self.value("$('#effort').value = 'high', $('#effort').dispatchEvent(new Event('change'))")
        self.value("$('#api-key').value = 'k', $('#api-key').dispatchEvent(new Event('change'))")
        self.ask("hello", "fine")
        self.assertEqual((self.text(".assistant .body"), self.stub.bodies[-1]["reasoning_effort"]), ("fine", "high"))

    def test_a_database_without_room(self):
        origin = self.url.rstrip("/")
        self.page.call("Storage.overrideQuotaForOrigin", origin=origin, quotaSize=100_000)
        self.addCleanup(self.page.call, "Storage.overrideQuotaForOrigin", origin=origin)
        self.value("""(() => {
          const data = new DataTransfer(), digits = Array.from({length: 2e6}, () => Math.random().toString(36)[3]);
          data.setData('text/plain', digits.join(''));
          $('#message').dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}));
        })()""")
        self.until("$$('#files .chip').length === 1")
        self.ask("hello", "fine")
        self.until("$('#notice').textContent.includes('no room for more conversations')")

    def test_a_database_that_is_cleared(self):
        self.ask("one", "1")
        self.page.call("Storage.clearDataForOrigin", origin=self.url.rstrip("/"), storageTypes="indexeddb")
        self.value("$('#new').click()")
        self.ask("two", "2")
        self.reload()
        self.assertEqual(self.value("$$('#list .open').map(b => b.textContent)"), ["two"])
        self.assertEqual(self.text(".assistant .body"), "2")

    def test_a_browser_without_storage(self):
        source = "for (const name of ['localStorage', 'sessionStorage', 'indexedDB']) Object.defineProperty(globalThis, name, " \
                 "{get() { throw new DOMException('denied', 'SecurityError'); }});"
        script = self.page.call("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"]
        try:
            self.load()
            self.ask("hello", "fine")
            self.assertEqual(self.text(".assistant .body"), "fine")
        finally:
            self.page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


if __name__ == "__main__":
    main()
