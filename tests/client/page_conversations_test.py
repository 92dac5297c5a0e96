"""Conversations of the page in a headless Chromium: kept, branched, carried in and out; on a phone, by day and by night,
for screen readers. Exit status 77 where there is no Chromium."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import ALT, DOWN, ENTER, ESCAPE, UP, Case, main  # noqa: E402

AXE = "axe-playwright-python==0.1.8"
AXE_FINDINGS = "axe.run().then(r => r.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html.slice(0, 200))]))"


def axe_source():
    """axe-core from PyPI; SkipTest where it cannot be had."""
    folder = pathlib.Path(os.environ.get("MOESAIC_AXE", pathlib.Path(__file__).resolve().parents[2] / "build/axe"))
    script = folder / "axe_playwright_python" / "axe.min.js"
    if not script.exists():
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
                               "--target", str(folder), AXE], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise unittest.SkipTest(f"no axe-core here: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return script.read_text()


class Conversations(Case):
    def new(self):
        self.click("#new")
        self.until("$$('.message').length === 0")

    def test_reload_keeps(self):
        self.ask("first", "**answer**")
        self.reload()
        self.assertEqual((self.text(".user .body"), self.text(".assistant .body")), ("first", "answer"))
        self.assertEqual(self.count(".assistant strong"), 1)
        self.ask("second")
        self.assertEqual(self.messages(), [("user", "first"), ("assistant", "**answer**"), ("user", "second")])

    def test_the_browser_is_asked_to_keep_conversations(self):
        self.value("globalThis.asked = 0; navigator.storage.persist = async () => !!++asked")
        self.ask("first", "1")
        self.ask("second", "2")
        self.assertEqual(self.value("asked"), 1)

    def test_reload_in_an_answer(self):
        gate = threading.Event()
        self.stub.answers.append({"deltas": [{"content": "half an answer"}] + [{"content": " more"}] * 3, "gate": gate})
        self.type("first")
        self.page.press(*ENTER)
        self.until("$('.assistant .body')?.innerText.includes('more')")
        self.until("""new Promise(done => indexedDB.open('moesaic').onsuccess = event => {
            const database = event.target.result;
            database.transaction('conversations').objectStore('conversations').count().onsuccess = found => {
              database.close();
              done(found.target.result > 0);
            };
        })""")
        self.reload()
        gate.set()
        self.assertEqual(self.text(".user .body"), "first")
        self.assertIn("Cut off", self.text(".assistant .foot"))
        self.ask("second", "whole")
        self.assertEqual(self.text(".assistant .body"), "whole")

    def test_a_cut_off_answer_is_opened_from_the_list(self):
        for kept, text in (({}, "half"), ({"unsent": True, "content": ""}, "sent at last")):
            self.ask("one", "half")
            self.in_another_tab(f"const node = conversation.nodes[conversation.leaf]; delete node.finish; Object.assign(node, {json.dumps(kept)})")
            self.load()
            self.stub.answers.append({"content": "sent at last"})
            self.click("#list .open")
            self.until(f"$('.assistant .body')?.innerText === {text!r} && $('#send').dataset.name === 'send'")
            self.assertEqual("Cut off when the page was left" in self.text(".assistant .foot"), not kept)
            self.assertEqual(self.count(".go-on"), 0 if kept else 1)
            self.stub.answers.clear()
            self.menu("#more", "Delete")
            self.until_titles([])

    def test_a_prompt_that_is_read_shows_it(self):
        progress = {"total": 40000, "cache": 8000, "processed": 16000, "time_ms": 4000}
        for stops in (False, True):
            gate = threading.Event()
            self.stub.answers.append({"content": "", "progress": [progress], "gate": gate})
            self.type("long")
            self.page.press(*ENTER)
            self.until("$$('.assistant .foot').at(-1)?.innerText === "
                       "'Reading the prompt: 16,000 of 40,000 tokens · 2000 tok/s · 12 s left'")
            self.assertTrue(self.stub.bodies[-1]["return_progress"])
            if stops:
                self.click("#send")
            gate.set()
            self.until("$('#send').dataset.name === 'send'")
            foot = self.value("$$('.assistant .foot').at(-1).innerText")
            self.assertEqual("16,000 of 40,000 tokens of the prompt were read" in foot, stops, foot)
            self.assertNotIn("Reading", foot)

    def test_draft_survives(self):
        self.type("not yet sent")
        self.reload()
        self.assertEqual(self.value("$('#message').value"), "not yet sent")

    def test_edit_branches(self):
        self.ask("one", "1")
        self.ask("two", "2")
        self.value("$('.user .tools [aria-label=Edit]').click()")
        self.value("$('.editor textarea').value = 'uno'")
        self.stub.answers.append({"content": "I"})
        self.click(".editor .main")
        self.until("$$('.message').length === 2 && $('#send').dataset.name === 'send'")
        self.assertEqual(self.messages(), [("user", "uno")])
        self.assertEqual(self.text(".user .branches"), "2 / 2")
        self.click(".user .branches button:first-child")
        self.until("$$('.message').length === 4")
        self.assertEqual(self.value("$$('.body').map(b => b.innerText)"), ["one", "1", "two", "2"])
        self.assertTrue(self.value("!!document.activeElement.closest('.branches')"))    # the keyboard stays where it was
        self.ask("three")
        self.assertEqual([content for _, content in self.messages()], ["one", "1", "two", "2", "three"])

    def test_ask_again_branches(self):
        self.ask("one", "1")
        self.stub.answers.append({"content": "another"})
        self.page.press("r", 82, modifiers=ALT)
        self.until("$('.assistant .body')?.innerText === 'another' && $('#send').dataset.name === 'send'")
        self.assertEqual(self.text(".assistant .branches"), "2 / 2")
        self.reload()
        self.assertEqual(self.text(".assistant .body"), "another")

    def test_edit_an_answer_and_delete(self):
        self.ask("one", "1")
        self.ask("two", "2")
        self.value("$('.assistant .tools [aria-label=Edit]').click()")
        self.value("$('.editor textarea').value = 'better'")
        self.click(".editor .main")
        self.until("$('.assistant .body').innerText === 'better'")
        self.ask("three", "3")
        self.assertEqual(self.messages()[1], ("assistant", "better"))
        self.value("$$('.user .tools [aria-label=\"Delete from here\"]')[1].click()")
        self.until("$$('.message').length === 2")
        self.ask("four", "4")
        self.click("#toast button")
        self.until("$$('.message').length === 6")
        self.assertEqual(self.value("$$('.user .branches span').map(b => b.innerText)"), ["1 / 2"])
        self.click(".user .branches button:last-child")
        self.until("$$('.message .body').at(-1).innerText === '4'")

    def test_up_edits_the_last_message(self):
        self.ask("one", "1")
        self.value("$('#message').focus()")
        self.page.press(*UP)
        self.assertEqual(self.value("document.activeElement.value"), "one")
        self.page.press(*ESCAPE)
        self.assertEqual(self.count(".editor"), 0)

    def test_list(self):
        self.ask("about cats", "they purr")
        self.new()
        self.ask("about dogs", "they bark")
        self.until_titles(["about dogs", "about cats"])
        self.value("$('#search').focus()")
        self.page.type("PURR")
        self.until_titles(["about cats"])
        self.click("#list .open")
        self.until("$('.assistant .body')?.innerText === 'they purr'")
        self.value("(() => { $('#search').value = ''; $('#search').dispatchEvent(new Event('input')) })()")
        self.menu("#list .current .round", "Pin")
        self.until_titles(["about cats", "about dogs"])
        self.menu("#list .current .round", "Rename")
        self.page.type("Felines")
        self.page.press(*ENTER)
        self.until_titles(["Felines", "about dogs"])
        self.assertEqual(self.text("#title"), "Felines")
        self.value("(() => { $('#search').value = 'bark'; $('#search').dispatchEvent(new Event('input')) })()")
        self.menu("#more", "Rename")    # the search hides its row
        self.assertEqual(self.value("document.activeElement.value"), "Felines")
        self.page.press(*ESCAPE)
        self.until_titles(["Felines", "about dogs"])
        self.menu("#list .current .round", "Delete")
        self.until_titles(["about dogs"])
        self.assertEqual(self.count(".message"), 0)
        self.click("#toast button")
        self.until_titles(["Felines", "about dogs"])

    def test_menu_by_keyboard(self):
        self.ask("one", "1")
        self.value("$('#more').focus(); $('#more').click()")
        self.page.press(*DOWN)
        self.assertEqual(self.value("document.activeElement.textContent"), "Pin")
        self.page.press(*ESCAPE)
        self.assertEqual(self.value("document.activeElement.id"), "more")

    def test_answers_go_on_elsewhere(self):
        gate = threading.Event()
        self.stub.answers.append({"content": "slow", "gate": gate})
        self.type("one")
        self.page.press(*ENTER)
        self.until("$('.assistant .body')?.innerText === 'slow'")
        self.new()
        self.ask("two", "quick")
        gate.set()
        self.value("$$('#list .open').find(b => b.textContent === 'one').click()")
        self.until("$('.assistant .body')?.innerText === 'slow' && $('#send').dataset.name === 'send' && $('.assistant .stats')")

    def test_export_and_import(self):
        self.ask("one", "1")
        self.stub.answers.append({"content": "another"})
        self.page.press("r", 82, modifiers=ALT)
        self.until("$('.assistant .branches') && $('#send').dataset.name === 'send'")
        self.until_titles(["one"])
        with tempfile.TemporaryDirectory() as folder:
            self.page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            self.click("#export-all")
            self.menu("#more", "Export as Markdown")
            files = [pathlib.Path(folder) / name for name in ("conversations.json", "one.md")]
            deadline = time.time() + 20
            while not all(file.exists() and file.stat().st_size for file in files):
                self.assertLess(time.time(), deadline)
                time.sleep(0.02)
            self.assertIn("## You\n\none\n", files[1].read_text())
            self.click("#delete-all")
            self.until("$$('#list .open').length === 0")
            self.import_file(files[0])
            self.until_titles(["one"])
        self.click("#list .open")
        self.until("$('.assistant .body')?.innerText === 'another'")
        self.assertEqual(self.text(".assistant .branches"), "2 / 2")

    def import_file(self, file):
        document = self.page.call("DOM.getDocument")["root"]["nodeId"]
        node = self.page.call("DOM.querySelector", nodeId=document, selector="#import-file")["nodeId"]
        self.page.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def test_import_of_what_is_none(self):
        def whole(nodes):
            return json.dumps({"format": "moesaic conversations", "version": 1, "conversations": [{"nodes": nodes}]})

        a = {"role": "user", "content": "x"}
        cases = {"{": "not JSON", "[]": "no conversations", '{"format": "moesaic conversations", "version": 9, "conversations": []}': "version 9",
                 whole({"a": {"role": "root", "content": ""}}): "without a role", whole({"a": {**a, "parent": "b"}}): "missing",
                 whole({"a": {**a, "parent": "b"}, "b": {**a, "parent": "a"}}): "circle", whole({"a": {**a, "content": 5}}): "without a role"}
        with tempfile.TemporaryDirectory() as folder:
            for i, (text, message) in enumerate(cases.items()):
                file = pathlib.Path(folder) / f"{i}.json"
                file.write_text(text)
                self.import_file(file)
                self.until(f"!$('#toast').hidden && $('#toast').textContent.includes({message!r})")
            hostile = {"a": {**a, "content": "<img src=x onerror=hacked=1>", "name": "<b>"},
                       "__proto__": {"role": "assistant", "content": "<svg onload=hacked=1>", "parent": "a", "reasoning": "<img src=x onerror=hacked=1>",
                                     "stats": {"tokens": "<b>", "prompt": 3}, "error": "<img src=x onerror=hacked=1>", "calls": [{"name": "<i>", "id": "\""}]}}
            file.write_text(whole(hostile))
            self.import_file(file)
            self.until("$$('#list .open').length === 1")
        self.click("#list .open")
        self.until("$$('.message').length > 0")
        self.assertEqual(self.value("[typeof globalThis.hacked, $$('#thread img, #thread svg:not(.icon)').length, ({}).role]"), ["undefined", 0, None])
        self.assertEqual(self.count("#list .open"), 1)

    def test_refused_is_not_sent_again(self):
        self.ask("fine", "1")
        self.ask("far too long", status=400, message="the prompt is longer than the context", code="context_length_exceeded")
        self.assertIn("Not sent: the prompt is longer", self.text(".user .foot"))
        self.until("$('#said').textContent.startsWith('the prompt is longer')")
        self.ask("short", "2")
        self.assertEqual(self.messages(), [("user", "fine"), ("assistant", "1"), ("user", "short")])
        # A gateway that has a text for an error.
        self.value("globalThis.asks = fetch; globalThis.fetch = (...what) => what[1]?.method === 'POST'"
                   " ? Promise.resolve(new Response('{\"error\": \"rate limited\"}', {status: 429})) : asks(...what)")
        self.ask("three")
        self.value("globalThis.fetch = asks")
        self.assertIn("Not sent: rate limited", self.text(".user .foot"))
        self.ask("four", status=503, message="the model is being loaded")
        self.stub.answers.append({"content": "at last"})
        self.value("$$('.user .tools [aria-label=\"Send again\"]').at(-1).click()")
        self.until("$$('.assistant .body').at(-1)?.innerText === 'at last'")
        self.assertEqual(self.messages()[-1], ("user", "four"))

    def test_cut_off(self):
        self.ask("one", "an unfinished", finish="length")
        self.assertIn("Cut off at the limit", self.text(".assistant .foot"))
        self.stub.answers.append({"content": " answer, with its end"})
        self.click(".go-on")
        self.until("$$('.assistant .body').at(-1).innerText === 'an unfinished answer, with its end' && $('#send').dataset.name === 'send'")
        self.assertEqual(self.count(".assistant"), 1)
        self.assertEqual(self.count(".go-on, .trouble"), 0)
        body = self.stub.bodies[-1]
        self.assertEqual((body["messages"][-1], body["continue_final_message"], body["add_generation_prompt"]),
                         ({"role": "assistant", "content": "an unfinished"}, True, False))
        self.ask("two", "2")
        self.assertNotIn("continue_final_message", self.stub.bodies[-1])
        self.assertEqual(self.messages()[1], ("assistant", "an unfinished answer, with its end"))

    def test_a_thought_that_was_cut_off_goes_on(self):
        self.ask("one", deltas=[{"reasoning_content": "Let me "}], finish="length")
        self.value("$('.thought summary').click()")
        self.stub.answers.append({"deltas": [{"reasoning_content": "see."}, {"content": "1"}]})
        self.reload()
        self.until("$('.go-on')")
        self.value("$('.thought summary').click()")
        self.click(".go-on")
        self.until("$('.assistant .body').innerText === '1' && $('#send').dataset.name === 'send'")
        self.assertEqual(self.stub.bodies[-1]["messages"][-1], {"role": "assistant", "content": None, "reasoning_content": "Let me "})
        self.assertEqual(self.text(".thought .markdown"), "Let me see.")

    def test_only_the_last_message_can_go_on(self):
        self.ask("one", "as far", finish="length")
        self.ask("two", "2")
        self.assertEqual(self.value("getComputedStyle($('.go-on')).display"), "none")

    def test_the_rate_is_of_tokens_not_of_chunks(self):
        gate = threading.Event()
        deltas = [{"content": "a"}, {"content": "b"}]
        self.stub.answers.append({"deltas": deltas, "counts": [1, 101], "between": gate, "tokens": 101})
        self.type("one")
        self.page.press(*ENTER)
        self.until("$('.assistant .body')?.innerText.includes('a')")
        self.page.call("Runtime.evaluate", expression="new Promise(done => setTimeout(done, 500))", awaitPromise=True)
        gate.set()
        self.idle("one")
        found = re.search(r"101 tokens · ([\d.]+) tok/s", self.text(".assistant .stats"))
        self.assertTrue(20 < float(found[1]) < 210, found[0])

    def test_connection_breaks(self):
        self.ask("one", "as far as this", broken=True)
        self.assertEqual(self.text(".assistant .body"), "as far as this")
        self.assertIn("the connection to the server ended", self.text(".assistant .foot"))
        self.ask("two", "2")
        self.assertEqual(self.messages(), [("user", "one"), ("assistant", "as far as this"), ("user", "two")])

    def test_delete_all_can_be_undone_where_it_is_pressed(self):
        self.ask("keep", "an answer")
        self.click("#open-settings")
        self.value("$('#delete-all').closest('details').open = true")
        self.press("#delete-all")
        self.until_titles([])
        self.until("!$('#toast').hidden")
        self.press("#toast button")
        self.until_titles(["keep"])
        self.assertTrue(self.value("$('#settings').open"))
        self.click("#settings .dialog-top button")
        self.until("document.body === $('#toast').parentElement")  # a dialog tells a moment later that it is closed

    def test_what_is_deleted_while_it_is_answered_stays_so(self):
        for item in ("Delete", "all"):
            gate = threading.Event()
            self.addCleanup(gate.set)
            self.stub.answers.append({"content": "half", "gate": gate})
            self.type(item)
            self.page.press(*ENTER)
            self.until("$('.assistant .body')?.innerText === 'half' && $$('#list .open').length")
            if item == "all":
                self.click("#delete-all")
            else:
                self.menu("#more", item)
            self.until_titles([])
            gate.set()
            self.until("$('#send').dataset.name === 'send'")
            self.reload()
            self.assertEqual(self.titles(), [])
        self.stub.answers.append({"content": "half", "gate": threading.Event()})
        self.type("back")
        self.page.press(*ENTER)
        self.until("$('.assistant .body')?.innerText === 'half'")
        self.menu("#more", "Delete")
        self.until("!$('#toast').hidden")
        self.click("#toast button")
        self.until_titles(["back"])
        self.reload()
        self.assertEqual((self.titles(), self.text(".assistant .body")), (["back"], "half"))
        self.assertIn("Stopped", self.text(".assistant .foot"))

    def test_calls(self):
        calls = [{"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": f'{{"i": {i}}}'}} for i in (0, 1)]
        self.ask("one", deltas=[{"tool_calls": calls}], finish="tool_calls")
        self.assertEqual(self.value("$$('.call code').map(c => c.innerText)"), ['f({"i": 0})', 'f({"i": 1})'])
        self.page.type("first")
        self.page.press(*ENTER)
        self.until("$$('.call textarea').length === 1")
        self.reload()
        self.until("$$('.call textarea').length === 1")
        self.stub.answers.append({"content": "both"})
        self.page.type("second")
        self.page.press(*ENTER)
        self.until("$$('.assistant .body').at(-1).innerText === 'both' && $('#send').dataset.name === 'send'")
        sent = self.stub.bodies[-1]["messages"]
        self.assertEqual([m.get("tool_call_id") for m in sent], [None, None, "c0", "c1"])
        self.assertEqual([c["id"] for c in sent[1]["tool_calls"]], ["c0", "c1"])

    def test_unanswered_call_is_left_out(self):
        self.ask("one", deltas=[{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}], finish="tool_calls")
        self.ask("never mind", "fine")
        self.assertEqual(self.messages(), [("user", "one"), ("user", "never mind")])
        self.assertEqual(self.count(".call textarea"), 0)

    def test_thoughts_are_folded(self):
        self.ask("one", deltas=[{"reasoning_content": "*deep*"}, {"content": "shallow"}])
        self.assertFalse(self.value("$('.thought').open"))
        self.assertEqual(self.count(".thought em"), 0)
        self.click(".thought summary")
        self.until("$('.thought em')?.innerText === 'deep'")

    def test_settings(self):
        self.click("#open-settings")
        for name, text in {"System prompt": "Be brief.", "Temperature": "0.5", "Other fields": '{"min_tokens": 3}', "Stop strings": "a\nb"}.items():
            self.value(f"""(() => {{ const field = $$('.field').find(f => f.querySelector('.field-name').textContent === {name!r}).querySelector('input, textarea');
                field.value = {text!r}; field.dispatchEvent(new Event('change')); }})()""")
        self.value("$('#preset-name').value = 'brief'")
        self.click("#preset-save")
        self.click("#settings .dialog-top button")
        self.ask("one", "1")
        body = self.stub.bodies[-1]
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual((body["temperature"], body["min_tokens"], body["stop"]), (0.5, 3, ["a", "b"]))
        self.assertNotIn("top_p", body)
        for choice, system in (("", "user"), ("brief", "system")):
            self.value(f"(() => {{ $('#preset').value = {choice!r}; $('#preset').dispatchEvent(new Event('change')) }})()")
            self.ask("again", "2")
            self.assertEqual(self.stub.bodies[-1]["messages"][0]["role"], system)

    def test_setting_that_is_not_json(self):
        self.value("localStorage.setItem('moesaic.settings', JSON.stringify({tools: '[{'}))")
        self.reload()
        self.ask("one")
        self.assertIn("Not sent: Tools: not JSON", self.text(".user .foot"))
        self.assertEqual(self.stub.bodies, [])

    def test_textarea_grows_and_bubbles_fit(self):
        before = self.value("$('#message').offsetHeight")
        self.type("a\nb\nc\nd")
        self.assertGreater(self.value("$('#message').offsetHeight"), 2 * before)
        self.page.press(*ENTER)
        self.idle("a")
        self.assertEqual(self.value("$('#message').offsetHeight"), before)
        self.assertLess(self.value("$('.user .body').offsetWidth"), 80)

    def test_phone(self):
        self.phone()
        self.ask("what " * 30, "| a very wide | table | of many | columns | which | scrolls | by | itself |\n|-|-|-|-|-|-|-|-|\n"
                 "| 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |\n\n```\n" + "long " * 60 + "\n```\n\n\\[ " + " + x^2" * 40 + "\\]\n")
        self.until("$('.katex')")
        self.assertLessEqual(self.value("document.documentElement.scrollWidth"), 360)
        self.assertLessEqual(self.value("$('#scroll').scrollWidth"), 360)
        self.assertLess(self.value("$('header').offsetHeight"), 60)
        self.assertTrue(self.value("$('#side').inert"))
        self.click("#open-side")
        self.assertFalse(self.value("$('#side').inert"))
        self.until("$('#list .open').getBoundingClientRect().right > 100")
        self.click("#shade")
        self.assertTrue(self.value("$('#side').inert"))

    def test_day_and_night(self):
        colours = []
        for scheme in ("light", "dark"):
            self.scheme(scheme)
            colours.append(self.value("getComputedStyle(document.body).backgroundColor"))
        self.value("localStorage.setItem('moesaic.settings', JSON.stringify({theme: 'light'}))")
        self.reload()
        colours.append(self.value("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(colours[0], colours[2])
        self.assertNotEqual(colours[0], colours[1])

    def test_axe(self):
        source = axe_source()
        self.ask("everything", deltas=[{"reasoning_content": "hm"}, {"content": "### Title\n\n# Other\n\n- [x] a\n\n| a |\n|---|\n| $x$ |\n\n"
                                       "```python\nx = 'a'  # b\n```\n\n> [link](https://example.com)"}], finish="length")
        self.until("$('.katex') && $('.hljs-string')")
        self.value("(() => { const data = new DataTransfer(); data.setData('text/plain', 'line\\n'.repeat(100));"
                   "$('#message').dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, cancelable: true})); })()")
        self.until("$('.chip')")
        self.value(source + ";0")
        for scheme, phone, dialog in (("light", False, False), ("dark", False, False), ("light", True, False), ("light", True, True),
                                      ("dark", False, True)):
            with self.subTest(scheme=scheme, phone=phone, dialog=dialog):
                self.scheme(scheme)
                self.page.call("Emulation.clearDeviceMetricsOverride")
                if phone:
                    self.phone()
                self.value("$$('dialog[open]').forEach(d => d.close())")
                if dialog and phone:
                    self.value("$('#instructions').showModal()")
                elif dialog:
                    self.click("#open-settings")
                    self.value("$$('#settings details').forEach(d => d.open = true)")
                self.assertEqual(self.value(AXE_FINDINGS), [])

    def test_axe_in_the_middle_of_things(self):
        """A message that was refused, one that is edited, a call that waits for its result, a menu, a notice, an answer that comes."""
        source = axe_source()
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.ask("one", "1")
        self.ask("two", status=400, message="the prompt is too long", code="context_length_exceeded")
        self.click(".user [aria-label=Edit]")
        self.stub.answers.append({"deltas": [{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}], "finish": "tool_calls"})
        self.value("$('#message').focus()")
        self.page.type("three")
        self.page.press(*ENTER)
        self.until("$('.call textarea') && $('.leave-out') && $('.editor')")
        self.value(source + ";0")
        states = {"call": "0", "menu": "$('#more').click()", "notice": "$('#notice').textContent = 'x.png is not a text file (UTF-8)'",
                  "toast": "$$('.assistant [aria-label=\"Delete from here\"]').at(0).click()"}
        for phone in (False, True):
            for scheme in ("light", "dark"):
                self.scheme(scheme)
                if phone:
                    self.phone()
                for name, act in states.items():
                    with self.subTest(name, phone=phone, scheme=scheme):
                        self.value(act)
                        self.assertEqual(self.value(AXE_FINDINGS), [])
                        self.page.press(*ESCAPE)
                states.pop("toast", None)  # it has erased what it stands on
        self.stub.answers.append({"content": "a\nb", "gate": gate, "progress": [{"total": 40000, "cache": 0, "processed": 16000, "time_ms": 4000}]})
        self.value("$('#new').click()")
        self.type("four")
        self.page.press(*ENTER)
        self.until("$('[aria-busy]')")
        self.assertEqual(self.value(AXE_FINDINGS), [])
        gate.set()
        self.idle("four")


if __name__ == "__main__":
    main()
