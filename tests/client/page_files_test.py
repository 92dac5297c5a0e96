"""Files beside messages, instructions of a conversation, and conversations that no longer fit, on the page in a headless
Chromium, at the sizes of a desktop and of a phone. Exit status 77 where there is none."""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import ENTER, SHIFT, UP, Case, main  # noqa: E402

TOO_LONG = {"status": 400, "message": "the prompt is longer than the context", "code": "context_length_exceeded"}
TRANSFER = "const data = new DataTransfer();"


class Files(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="moesaic-files-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def choose(self, **files):
        """By the button, as a reader does."""
        paths = []
        for name, data in files.items():
            path = self.folder / name.replace("_", ".")
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
            paths.append(str(path))
        root = self.page.call("DOM.getDocument")["root"]["nodeId"]
        node = self.page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.page.call("DOM.setFileInputFiles", files=paths, nodeId=node)

    def event(self, kind, target, fill):
        carrier = "clipboardData" if kind == "paste" else "dataTransfer"
        init = "ClipboardEvent" if kind == "paste" else "DragEvent"
        return self.value(f"(() => {{ {TRANSFER} {fill}; return !$('{target}').dispatchEvent(new {init}('{kind}', "
                          f"{{{carrier}: data, bubbles: true, cancelable: true}})); }})()")

    def sent(self):
        return self.stub.bodies[-1]["messages"]

    def chips(self):
        return self.value("$$('.chip span').map(c => c.innerText)")

    def fits(self):
        self.assertTrue(self.value("document.documentElement.scrollWidth <= innerWidth && $('#room').scrollWidth <= innerWidth"))

    def test_files_by_button(self):
        for prepare in (lambda: None, self.phone):
            prepare()
            self.choose(notes_py="print(1)\n", text_md="# one\n````\ncode\n````\nlast")
            self.until("$$('.chip').length === 2")
            self.assertEqual(self.chips(), ["notes.py · 1 line", "text.md · 5 lines"])
            self.fits()
            self.type("What is this?")
            self.click("#send")
            self.idle("What is this?")
            self.assertEqual(self.sent()[-1]["content"], "What is this?\n\nnotes.py:\n```py\nprint(1)\n```\n\n"
                             "text.md:\n`````md\n# one\n````\ncode\n````\nlast\n`````")
            self.assertEqual(self.count(".chip"), 0)
            self.fits()
        self.reload()
        self.assertEqual(self.text(".user .body > .file summary"), "text.md · 5 lines")
        self.click(".user .file summary")
        self.until("$$('.user .file pre').at(-1)?.innerText.includes('# one')")

    def test_an_edited_message_keeps_its_files(self):
        self.choose(a_txt="x")
        self.until("$('.chip')")
        self.type("one")
        self.page.press(*ENTER)
        self.idle("one")
        self.page.press(*UP)
        self.page.type(" more")
        self.page.press(*ENTER)
        self.until("$$('.branches').length > 0 && $('#send').dataset.name === 'send'")
        self.assertIn("a.txt:\n```txt\nx\n```", self.sent()[-1]["content"])
        self.assertIn("more", self.sent()[-1]["content"])

    def test_files_without_words_are_a_message(self):
        self.choose(only_txt="x")
        self.until("$('#send').getAttribute('aria-disabled') === 'false'")
        self.click("#send")
        self.until("$$('.assistant').length === 1 && $('#send').dataset.name === 'send'")
        self.assertEqual(self.sent()[-1]["content"], "only.txt:\n```txt\nx\n```")
        self.assertEqual(self.text("#title"), "only.txt")

    def test_what_is_no_text_is_refused(self):
        self.choose(picture_png=b"\x89PNG\xff\0", good_txt="fine", zero_txt="a\0b", big_txt="x" * (2 << 20) + "y")
        self.until("$('.chip')")
        notice = self.text("#notice")
        for words in ("picture.png is not a text file", "zero.txt is not a text file", "big.txt is larger than 2 MB"):
            self.assertIn(words, notice)
        self.assertEqual(self.chips(), ["good.txt · 1 line"])
        self.click(".chip button")
        self.assertEqual(self.count(".chip"), 0)

    def test_drop(self):
        self.event("drop", "#scroll", "data.items.add(new File(['int x;'], 'a.c'))")
        self.until("$('.chip')")
        self.assertEqual(self.chips(), ["a.c · 1 line"])
        self.reload()
        self.assertEqual(self.chips(), ["a.c · 1 line"])

    def test_a_large_paste_becomes_a_file_and_a_small_one_does_not(self):
        self.assertFalse(self.event("paste", "#message", "data.setData('text/plain', 'short')"))
        self.assertEqual(self.count(".chip"), 0)
        self.assertTrue(self.event("paste", "#message", "data.setData('text/plain', 'line\\n'.repeat(100))"))
        self.assertEqual(self.chips(), ["pasted text · 100 lines"])
        self.assertTrue(self.event("paste", "#message", "data.items.add(new File(['y'], 'b.txt'))"))
        self.until("$$('.chip').length === 2")

    def test_they_are_exported_and_imported(self):
        self.choose(a_txt="<b>x</b>")
        self.until("$('.chip')")
        self.ask("one", "1")
        same = self.value("""(async () => {
            const folder = $('script[src]').src.replace(/main\\.js$/, '');
            const {fromJson, toJson, toMarkdown} = await import(folder + 'transfer.js');
            const {loadAll} = await import(folder + 'store.js');
            const [one] = await loadAll(), [two] = fromJson(toJson([{...one, system: 'Be brief.'}]));
            const first = Object.values(two.nodes).find(node => node.files);
            return JSON.stringify([first.files, two.system, toMarkdown(two).includes('<b>x</b>')]);
        })()""")
        self.assertEqual(json.loads(same), [[{"name": "a.txt", "text": "<b>x</b>"}], "Be brief.", True])


class Conversation(Case):
    def instruct(self, text):
        self.click("#more")
        self.value("$$('.menu button').find(b => b.textContent.startsWith('Instructions')).click()")
        self.until("$('#instructions').open")
        self.value("$('#instructions-text').value = ''")
        self.page.type(text)
        self.click("#instructions [value=save]")
        self.until("!$('#instructions').open")

    def test_instructions_of_one_conversation(self):
        self.value("localStorage.setItem('moesaic.settings', JSON.stringify({system: 'Of all.'}))")
        self.reload()
        for prepare in (lambda: None, self.phone):
            prepare()
            self.click("#new")
            self.until("$$('.message').length === 0")
            self.instruct("Of this one.")
            self.ask("one", "1")
            self.assertEqual(self.stub.bodies[-1]["messages"][0], {"role": "system", "content": "Of this one."})
            self.reload()
            self.ask("two", "2")
            self.assertEqual(self.stub.bodies[-1]["messages"][0]["content"], "Of this one.")
            self.instruct("")
            self.ask("three", "3")
            self.assertEqual(self.stub.bodies[-1]["messages"][0]["content"], "Of all.")

    def questions(self):
        return [message["content"] for message in self.stub.bodies[-1]["messages"] if message["role"] == "user"]

    def test_the_oldest_turns_can_be_left_out(self):
        for word in "abcd":
            self.ask(word, word.upper())
        self.ask("e", **TOO_LONG)
        self.assertIn("Not sent: the prompt is longer", self.text(".user .foot"))
        self.stub.answers.append(TOO_LONG)
        self.click(".leave-out")
        self.until("$('.leave-out') && $('#send').dataset.name === 'send'")
        self.assertEqual(self.questions(), ["c", "d", "e"])
        self.stub.answers.append({"content": "E"})
        self.click(".leave-out")
        self.until("$$('.assistant .body').at(-1).innerText === 'E' && $('#send').dataset.name === 'send'")
        self.assertEqual(self.questions(), ["d", "e"])
        self.assertEqual((self.count(".message"), self.count(".leave-out"), self.count(".first-sent")), (10, 0, 1))
        self.reload()
        self.ask("f", "F")
        self.assertEqual(self.questions(), ["d", "e", "f"])
        self.click(".first-sent button")
        self.ask("g", "G")
        self.assertEqual(self.questions(), list("abcdefg"))

    def test_a_single_message_that_is_too_long_offers_nothing(self):
        self.ask("e", **TOO_LONG)
        self.assertEqual(self.count(".leave-out"), 0)

    def test_enter_is_the_same_in_an_edited_message(self):
        self.ask("one", "1")
        self.page.press(*UP)
        self.page.press(*ENTER, modifiers=SHIFT)
        self.page.type("more")
        self.assertIn("\n", self.value("$('.editor textarea').value"))
        self.page.press(*ENTER)
        self.until("$('.branches')?.innerText.includes('2 / 2') && $('#send').dataset.name === 'send'")
        self.value("localStorage.setItem('moesaic.settings', JSON.stringify({sendByEnter: false}))")
        self.reload()
        self.value("$('#message').focus()")
        self.page.press(*UP)
        self.page.press(*ENTER)
        self.assertEqual(self.count(".editor"), 1)
        self.assertEqual(self.value("$('.editor .main').title"), self.value("$('#send').title"))


if __name__ == "__main__":
    main()
