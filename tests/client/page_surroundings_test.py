"""The page in surroundings that are not as on its author's machine: a proxy that places it in a folder, the browser's Back, a server
that comes back with another model, files that do not arrive, input methods, a Mac's keyboard, a screen as narrow as the
smallest, other tabs of the page. Exit status 77 where there is no Chromium."""

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

    def test_without_metrics(self):
        """A proxy keeps them from readers, and the server can be reached all the same."""
        self.answer_of("/metrics", 403, "<html>Forbidden</html>")
        self.load()
        self.until("$('#server-device').textContent.includes('tokens of context')")
        self.assertEqual(self.text("#server-load"), "")
        self.ask("one", "1")
        self.assertEqual(self.stub.bodies[-1]["model"], "tiny")
        self.answer_of("/ready", 502, "<html>Bad Gateway</html>")
        self.until("$('#server-device').textContent === 'The server cannot be reached'")
        self.answer_of("/ready", 403, "<html>Forbidden</html>")
        self.until("$('#server-device').textContent.includes('tokens of context')")

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


class Tabs(Case):
    def test_two_tabs(self):
        self.ask("one", "1")
        self.in_another_tab("conversation.title = 'from another tab'")
        self.until_titles(["from another tab"])
        self.until("$('#title').textContent === 'from another tab'")

    def test_two_tabs_send(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.stub.answers.append({"deltas": [{"content": "half"}, {"content": " whole"}], "between": gate})
        self.type("one")
        self.page.press(*ENTER)
        self.until("$('.assistant .body')?.innerText === 'half' && $$('#list .open').length")
        self.in_another_tab("conversation.nodes.other = {id: 'other', parent: conversation.leaf, time: Date.now(), role: 'user', content: 'two'};"
                            "conversation.nodes[conversation.leaf].content = 'old'; conversation.leaf = 'other'")
        self.until("$$('.user .body').at(-1).innerText === 'two'")
        gate.set()
        self.idle("one")
        self.reload()
        self.assertEqual(self.value("$$('.message .body').map(b => b.innerText)"), ["one", "half whole", "two"])

    def test_a_text_that_is_written_outlasts_another_tab(self):
        self.ask("one", "1")
        self.value("$('.user .tools [aria-label=Edit]').click()")
        self.value("$('.editor textarea').value = 'uno'")
        self.in_another_tab("conversation.nodes[conversation.leaf].content = '1 and more'")
        self.until("$('.assistant .body').innerText === '1 and more'")
        self.stub.answers.append({"content": "I"})
        self.click(".editor .main")
        self.until("$$('.assistant .body').at(-1)?.innerText === 'I' && $('#send').dataset.name === 'send'")
        self.assertEqual(self.messages(), [("user", "uno")])
        self.click(".user .branches button:first-child")
        self.until("$$('.assistant .body').at(-1).innerText === '1 and more'")

    def test_a_title_from_another_tab_loses_no_message(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.stub.answers.append({"deltas": [{"content": "first"}, {"content": " second"}], "between": gate})
        self.type("question")
        self.page.press(*ENTER)
        self.until("$('.assistant .body')?.innerText === 'first' && $$('#list .open').length")
        with self.tab(self.another_tab()):
            self.until("$$('#list .open').length === 1")
            self.menu("#list .row .round", "Rename")
            self.until("$('#list input')")
            gate.set()
            with self.tab(type(self).page):
                self.idle("question")
            self.value("$('#list input').value = 'renamed'")
            self.page.press(*ENTER)
            self.until_titles(["renamed"])
        self.until_titles(["renamed"])
        self.reload()
        self.assertEqual(self.value("$$('.message .body').map(b => b.innerText)"), ["question", "first second"])

    def test_settings_of_another_tab_stay(self):
        self.value("localStorage.setItem('moesaic.settings', JSON.stringify({system: 'theirs'}))")
        self.value("(() => { $('#effort').value = 'high'; $('#effort').dispatchEvent(new Event('change')) })()")
        kept = json.loads(self.value("localStorage.getItem('moesaic.settings')"))
        self.assertEqual((kept["system"], kept["effort"]), ("theirs", "high"))

    def test_presets_of_another_tab_stay(self):
        self.value("localStorage.setItem('moesaic.presets', JSON.stringify({theirs: {system: 'x'}}))")
        self.value("$('#preset-name').value = 'mine'")
        self.click("#preset-save")
        self.assertEqual(self.value("$$('#preset option').map(o => o.value)"), ["", "mine", "theirs"])

    def until_known(self, id):
        """Until this tab has taken over that message."""
        self.until("import(new URL('store.js', $('script[type=module]').src).href).then(store => store.loadAll())"
                   f".then(all => all.some(({{nodes}}) => {id!r} in nodes))")

    def wait(self, ms):
        self.value(f"new Promise(done => setTimeout(done, {ms}))")

    def test_a_menu_acts_on_what_is_there_by_then(self):
        def choose(item):
            self.value(f"$$('.menu button').find(b => b.textContent === {item!r}).click()")

        def title():
            self.page.type("Title")
            self.page.press(*ENTER)
            self.until_titles(["Title"])

        def instruct():
            self.page.type("Be brief.")
            self.click("#instructions [value=save]")

        def pin():
            choose("Pin")
            self.until("$('.age').textContent === 'Pinned'")

        def delete_and_undo():
            choose("Delete")
            self.until_titles([])
            self.click("#toast button")
            self.until_titles(["Title"])

        self.ask("one", "1")
        self.value("$('#new').click()")
        self.until("$$('.message').length === 0")
        for item, act in {"Rename": title, "Instructions": instruct, "Pin": pin, "Delete": delete_and_undo}.items():
            self.click("#list .round")
            if act in (title, instruct):
                choose(item)
            self.in_another_tab(f"conversation.nodes.{item} = {{id: '{item}', parent: conversation.leaf, time: Date.now(), role: 'user',"
                                f" content: 'before {item}'}}; conversation.leaf = '{item}'")
            self.until_known(item)
            act()
        self.reload()
        self.assertEqual(self.value("$$('.message .body').map(b => b.innerText)"),
                         ["one", "1", "before Rename", "before Instructions", "before Pin", "before Delete"])
        self.ask("two", "2")
        self.assertEqual(self.messages()[0], ("system", "Be brief."))

    def test_settings_go_from_tab_to_tab(self):
        system = "$$('.field').find(f => f.querySelector('.field-name')?.textContent === 'System prompt').querySelector('textarea')"

        def set_(element, change):
            self.value(f"(() => {{ const element = {element}; element.{change}; element.dispatchEvent(new Event('change')) }})()")

        other = self.another_tab()
        set_(system, "value = 'Of here.'")
        set_("$('#send-by-enter')", "checked = false")
        with self.tab(other):
            self.until(f"{system}.value === 'Of here.' && !$('#send-by-enter').checked")
            self.click("#open-settings")
            self.value(f"{system}.select()")
            self.page.type("half a sen")
        set_("$('#effort')", "value = 'high'")
        set_(system, "value = 'Of here, too.'")
        set_("$('#send-by-enter')", "checked = true")
        with self.tab(other):
            self.until("$('#effort').value === 'high' && $('#send-by-enter').checked")
            self.assertEqual(self.value(f"{system}.value"), "half a sen")
            self.page.type("tence")
            self.value("document.activeElement.blur()")
        self.until(f"{system}.value === 'half a sentence'")
        self.value("$('#preset-name').value = 'mine'")
        self.click("#preset-save")
        with self.tab(other):
            self.until("$('#preset').value === 'mine'")
            self.click("#settings .dialog-top button")
            self.ask("one", "1")
        self.assertEqual((self.messages()[0], self.stub.bodies[-1]["reasoning_effort"]), (("system", "half a sentence"), "high"))

    def test_an_answer_of_another_tab_is_followed(self):
        thought, end = threading.Event(), threading.Event()
        for gate in (thought, end):
            self.addCleanup(gate.set)
        self.ask("one", "\n\n".join(f"paragraph {i}" for i in range(200)))
        deltas = [{"reasoning_content": "Let me "}, {"reasoning_content": "see."}, {"content": "half"}]
        self.stub.answers.append({"deltas": deltas, "between": thought, "gate": end})
        self.type("two")
        self.page.press(*ENTER)
        self.until("$('.thought.active')")
        other = self.another_tab(self.value("location.hash"))
        with self.tab(other):
            self.until("$$('.message').length === 4")
            self.assertEqual(self.count(".go-on, .trouble"), 0)
            self.value("$('#scroll').scrollTop = 50")
            self.until("!$('#to-end').hidden")
        self.wait(1000)   # the next text is saved before the end
        thought.set()
        with self.tab(other):
            self.until("$$('.thought').at(-1).hidden === false")
            self.click(".thought summary")
            self.until("$$('.thought .markdown').at(-1).innerText.includes('Let me')")
            end.set()
            self.until("$$('.assistant .body').at(-1).innerText === 'half' && $$('.assistant .stats').length === 2")
            self.assertTrue(self.value("$$('.thought').at(-1).open"))
            self.assertEqual((self.value("$('#scroll').scrollTop"), self.count(".message"), self.count(".go-on, .trouble")), (50, 4, 0))

    def test_what_another_tab_deletes_goes(self):
        self.ask("one", "1")
        self.ask("two", "2")
        self.in_another_tab("const {id, parent} = conversation.nodes[conversation.leaf]; delete conversation.nodes[id]; conversation.leaf = parent")
        self.until("$$('.message').length === 3")
        self.ask("three", "3")
        self.assertEqual([content for _, content in self.messages()], ["one", "1", "two", "three"])

    def test_a_tab_that_is_closed_in_an_answer(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.stub.answers.append({"deltas": [{"content": "half"}, {"content": " whole"}], "between": gate})
        other = self.another_tab()
        with self.tab(other):
            self.type("one")
            self.page.press(*ENTER)
            self.until("$('.assistant .body')?.innerText === 'half'")
        self.until_titles(["one"])
        self.click("#list .open")
        self.until("$$('.message').length === 2")
        self.assertEqual(self.count(".trouble"), 0)
        other.leave()
        self.until("$('.assistant .trouble')?.innerText === 'Cut off when the page was left'")

    def test_a_message_that_waits_is_sent_by_one_tab(self):
        loading = {"message": "the model is being loaded (42%)", "code": "model_loading"}
        self.stub.kept["/ready"] = (503, LOST, json.dumps({"error": loading}).encode())
        self.addCleanup(self.stub.kept.pop, "/ready", None)
        self.stub.answers.append({"status": 503, **loading})
        self.type("one")
        self.page.press(*ENTER)
        self.until("$('.assistant .foot')?.innerText.includes('(42%)')")
        with self.tab(self.another_tab(self.value("location.hash"))):
            self.until("$$('.message').length === 2")
            self.wait(500)
            self.assertEqual(len(self.stub.bodies), 1)
            self.stub.answers.append({"content": "1"})
            del self.stub.kept["/ready"]
            self.until("$('.assistant .body').innerText === '1' && $('.assistant .stats')")
        self.assertEqual((len(self.stub.bodies), self.text(".assistant .body")), (2, "1"))


if __name__ == "__main__":
    main()
