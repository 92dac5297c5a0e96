"""The terminal chat as a person uses it, under tmux: terminal_test.py, with the program in MOESAIC."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

import small_model
import tmux
from cli import FOLDER, MODEL, MOESAIC, THINKER, TIMEOUT
from local_hub import Hub

PROMPT = r"^> *$"
IDS = small_model.IDS
# A heading with an escape character in it; no token may come twice.
HEADING = str(small_model.make(FOLDER / "heading", [IDS["<|channel|>"], IDS["final"], IDS["<|message|>"], *b"# Ti\x1b[tle", IDS["<|return|>"]]))


class Chat(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="moesaic-terminal-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.history_file = self.folder / "moesaic" / "history"

    def start(self, *options, model="tiny", temp="0", columns=100, **environment):
        self.terminal = tmux.Tmux([*MOESAIC, "run", "-m", model, "--temp", temp, "-t", "1", *options], columns=columns,
                                  timeout=TIMEOUT, XDG_STATE_HOME=str(self.folder), **environment)
        self.addCleanup(self.terminal.close)
        self.terminal.wait(PROMPT)
        return self.terminal

    def history(self):
        text = self.history_file.read_text()
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]  # the last may not be whole yet

    def send(self, text, answer=r"tok/s"):
        """Types a message; waits for the prompt behind its answer, which must match."""
        before = self.terminal.screen().count("\n> ")
        self.terminal.type(text)
        self.terminal.keys("Enter")
        shown = self.terminal.until(lambda screen: screen.count("\n> ") > before and re.search(r"\n> *\n*\Z", screen) and screen,
                                    f"prompt after {text}")
        self.assertRegex(shown.split("\n> ")[-2], rf"(?m){answer}")

    def ends(self, status):
        """Waits for the end; the terminal must be as before."""
        modes = self.terminal.wait(rf"(?s)status {status}\n(.*)\Z")[0]
        self.terminal.wait(r"(?s)status.* echo ")
        self.assertNotRegex(modes, r"-icanon|-isig|-icrnl")

    def saved(self):
        path = self.folder / "saved.json"
        self.send(f"/save {path}", answer="/save")
        return json.loads(path.read_text())


class Editing(Chat):
    def test_keys(self):
        terminal = self.start(model=MODEL)
        terminal.type("wrld")
        terminal.keys("Left", "Left", "Left")
        terminal.type("o")
        terminal.keys("Home")
        terminal.type("hello ther ")
        terminal.keys("BSpace")
        terminal.type("e x")
        terminal.keys("C-w", "C-e")
        terminal.type(" Straße 世")
        terminal.keys("Enter")
        terminal.wait("OK!")
        self.assertEqual(self.history(), ["hello there world Straße 世"])

    def test_lines_within_a_message(self):
        terminal = self.start(model=MODEL)
        terminal.type("one")
        terminal.keys("C-j")
        terminal.type("two")
        terminal.keys("M-Enter")
        terminal.type("three\\")
        terminal.keys("Enter")
        terminal.type("four")
        terminal.keys("Enter")
        terminal.wait("OK!")
        for line in ('"""five', "", 'six"""'):
            terminal.type(line)
            terminal.keys("Enter")
        terminal.wait(r"(?s)OK!.*OK!")
        self.assertEqual(self.history(), ["one\ntwo\nthree\nfour", "five\n\nsix"])

    def test_history_is_kept_for_the_user_alone(self):
        self.start(model=MODEL)
        self.send("first")
        self.send("second")
        self.terminal.keys("Up", "Up", "Down", "Up")
        self.send(" again")
        self.terminal.keys("C-d")
        self.ends(0)
        self.assertEqual(stat.S_IMODE(self.history_file.stat().st_mode), 0o600)
        terminal = self.start(model=MODEL)
        terminal.keys("Up")
        terminal.wait("> first again$")
        terminal.keys("C-r")
        terminal.type("sec")
        terminal.wait("second")
        terminal.keys("Enter")
        terminal.wait("OK!")
        self.assertEqual(self.history(), ["first", "second", "first again", "second"])

    def test_tab_completes_a_command(self):
        terminal = self.start(model=MODEL)
        terminal.type("/rea")
        terminal.keys("Tab")
        terminal.type("s")
        terminal.keys("Tab", "Enter")
        terminal.wait("^medium$")

    def test_keys_that_mean_nothing_change_nothing(self):
        terminal = self.start(model=MODEL)
        terminal.type("hel")
        terminal.keys("M-x", "M-X", "F1", "F5", "F12", "PageUp", "PageDown", "BTab", "IC", "S-Left", "C-Up", "M-Up")
        for sequence in ("\x1b[27;5;13~", "\x1b[99u", "\x1b[<0;3;4M", "\x1b[I"):
            terminal.type(sequence)
        terminal.keys("Left", "Right", "Home", "End")
        terminal.type("lo")
        terminal.keys("Enter")
        terminal.wait("OK!")
        self.assertEqual(self.history(), ["hello"])

    def test_resize_while_a_line_is_typed(self):
        terminal = self.start(model=MODEL)
        terminal.type("a" * 70)
        terminal.wait("a{70}")
        terminal.resize(40, 20)
        terminal.type("b" * 30)
        terminal.wait("b")
        terminal.resize(120, 30)
        terminal.type("c")
        terminal.keys("Enter")
        terminal.wait("OK!")
        self.assertEqual(self.history(), ["a" * 70 + "b" * 30 + "c"])

    def test_resizing_does_not_repeat_the_line(self):
        for environment in ({}, {"NO_COLOR": "1"}):
            terminal = self.start(model=MODEL, **environment)
            terminal.type("first")
            terminal.keys("C-j")
            terminal.type("Z" * 70)
            terminal.wait("Z{70}$")
            one_line = lambda screen: screen.count("> first") == 1 and screen.count("Z") == 70 and screen.rstrip().endswith("Z")
            for columns in (40, 80, 33, 120):
                terminal.resize(columns, 24)
                terminal.until(one_line, f"one line in {columns} columns")
                terminal.type("c")
                terminal.until(lambda screen: screen.rstrip().endswith("Zc"), "c")
                terminal.keys("BSpace")
                terminal.until(one_line, f"one line in {columns} columns")


class Long(Chat):
    def test_forty_lines_are_one_message(self):
        terminal = self.start(model=MODEL)
        lines = "\n".join(f"line {i}\t#" for i in range(40))
        terminal.type("before ")
        terminal.paste(lines + "\n")
        terminal.wait(r"before \[paste 1: 40 lines\]")
        terminal.type(" after")
        terminal.keys("Enter")
        terminal.wait("OK!")
        self.assertEqual(self.history(), [f"before {lines} after"])
        self.assertEqual(self.saved()["messages"][0]["content"], f"before {lines} after")

    def test_twenty_kilobytes_in_a_line(self):
        terminal = self.start(model=MODEL)
        text = "".join(f"{i:05}" for i in range(4000))
        terminal.paste(text, marks=False)
        terminal.wait("03999")
        terminal.keys("Enter")
        # The message is kept before the model reads it, which takes minutes under sanitizers.
        terminal.until(lambda screen: self.history_file.exists() and self.history(), "message in the history")
        self.assertEqual(self.history(), [text])

    def test_what_is_pasted_during_an_answer_waits(self):
        terminal = self.start("--raw", model=MODEL)
        terminal.type("0")
        terminal.keys("Enter")
        terminal.wait("12345")
        terminal.paste("x" * 600 + "\nA")
        terminal.keys("C-c")
        terminal.wait(r"> \[paste 1: 2 lines\]")

    def test_no_escapes_from_a_paste(self):
        terminal = self.start(model=MODEL)
        terminal.paste("a\x1b]2;title\x07b")
        terminal.wait(r"> a\]2;titleb")


class Commands(Chat):
    def test_a_conversation(self):
        terminal = self.start()
        self.send("/help", answer="/reasoning")
        self.send("/system Be brief.", answer="brief")
        self.send("/system", answer=r"^Be brief\.$")
        self.send("/reasoning low", answer="low")
        self.send("/reasoning", answer="^low$")
        self.send("/reasoning hihg", answer="low, medium or high")
        self.send("What is 2 + 3?")
        first = self.saved()
        self.assertEqual(first["instructions"], "Be brief.")
        self.assertEqual(first["reasoning_effort"], "low")
        self.assertEqual(first["messages"][0], {"role": "user", "content": "What is 2 + 3?"})
        self.send("/retry", answer="tok/s")
        self.assertEqual(self.saved(), first)
        self.send("/clear", answer="/clear")
        self.assertEqual(self.saved()["messages"], [])
        (self.folder / "saved.json").write_text(json.dumps(first))
        self.send(f"/load {self.folder}/saved.json", answer="^[0-9]+ messages")
        self.assertEqual(self.saved(), first)
        self.assertEqual(stat.S_IMODE((self.folder / "saved.json").stat().st_mode), 0o600)
        terminal.type("/exit")
        terminal.keys("Enter")
        self.ends(0)

    def test_another_try_has_another_seed(self):
        said = []
        for _ in range(2):
            terminal = self.start("--seed", "5", temp="1.5")
            self.send("Tell me a story.")
            first = self.saved()
            self.send("/retry", answer="tok/s")
            said.append((first, self.saved()))
            terminal.keys("C-d")
            self.ends(0)
        self.assertEqual(said[0], said[1])
        self.assertNotEqual(*said[0])

    def test_files_go_out_with_the_next_message(self):
        for columns, environment in ((80, {}), (40, {}), (80, {"NO_COLOR": "1"}), (40, {"NO_COLOR": "1"})):
            with self.subTest(columns=columns, **environment):
                terminal = self.start(model=MODEL, **environment)
                terminal.resize(columns, 24)
                (self.folder / "a.c").write_text("int x;\n")
                (self.folder / "b.md").write_text("```\nb\n```")
                self.send(f"/attach {self.folder}/a.c", answer=r"b\s*y\s*t\s*e\s*s")
                self.send(f"/attach {self.folder}/b.md", answer=r"b\s*y\s*t\s*e\s*s")
                self.send("/attach /absent", answer="/absent: No such file")
                self.send("/attach", answer="give a file")
                self.send("What is this?", answer="OK!")
                self.assertEqual(self.saved()["messages"][0]["content"], f"What is this?\n\n{self.folder}/a.c:\n```\nint x;\n```"
                                 f"\n\n{self.folder}/b.md:\n````\n```\nb\n```\n````")
                self.send("And now?", answer="OK!")
                self.assertEqual(self.saved()["messages"][-2]["content"], "And now?")
                terminal.keys("C-d")
                self.ends(0)

    def test_names_of_files_as_for_a_shell(self):
        home = self.folder / "home"
        home.mkdir()
        (home / "my notes.txt").write_text("words")
        self.start(model=MODEL, HOME=str(home))
        for name in ("~/my notes.txt", f"'{home}/my notes.txt'", f'"{home}/my notes.txt"', str(home / "my notes.txt").replace(" ", "\\ "),
                     str(home / "my notes.txt")):
            self.send(f"/attach {name}", answer=r"5\s+bytes\s+go\s+out")
            self.send("What is this?", answer="OK!")
            self.assertEqual(self.saved()["messages"][-2]["content"], f"What is this?\n\n{home}/my notes.txt:\n```\nwords\n```")
        self.send("/save ~/a\\ b.json", answer="messages saved")
        self.assertTrue((home / "a b.json").exists())
        self.send("/load ~/a b.json", answer="[0-9]+ messages")

    def test_what_is_no_text_is_not_sent(self):
        (self.folder / "x.bin").write_bytes(b"\x7fELF\0\0")
        self.start(model=MODEL)
        for command in ("/attach", "/read"):
            self.send(f"{command} {self.folder}/x.bin", answer=r"not a\s+text file")
        self.send("hello", answer="OK!")
        self.assertEqual([m["content"] for m in self.saved()["messages"]], ["hello", "OK!"])

    def test_errors_end_nothing(self):
        self.start(model=MODEL)
        self.send("/hlep", answer="did you mean /help")
        self.send("/set verbose", answer="/set: /system and /reasoning")
        self.send("/load /absent.json", answer="absent.json: No such file")
        self.send("/retry", answer="there is no message yet")
        self.send("/clear now", answer="takes no argument")
        self.send("/SAVE x", answer="did you mean /save")
        (self.folder / "notes.txt").write_text("mine")
        self.send(f"/save {self.folder}/notes.txt", answer="no saved conversation")
        self.assertEqual((self.folder / "notes.txt").read_text(), "mine")
        (self.folder / "wrong.json").write_text('{"instructions": 5, "messages": []}')
        self.send(f"/load {self.folder}/wrong.json", answer="instructions is not a string")
        self.send("/etc/passwd", answer="OK!")
        self.send(" /help", answer="OK!")


class Answers(Chat):
    def test_ctrl_c_stops_an_answer_and_twice_ends(self):
        terminal = self.start("--raw", model=MODEL)
        terminal.type("0")
        terminal.keys("Enter")
        terminal.wait("12345")
        terminal.keys("C-c")
        terminal.wait(r"(?s)tok/s.*stopped\]\n> *\n*\Z")
        terminal.type("dropped")
        terminal.keys("C-c")
        terminal.wait(r"(?s)dropped\n> *\n*\Z")
        terminal.keys("C-c")
        terminal.wait(r"(?s)Ctrl-C again.*\n> *\n*\Z")
        terminal.keys("C-c")
        self.ends(0)

    def test_an_answer_that_never_began_has_no_times(self):
        terminal = self.start("--raw", "--device", "reference", "--ctx", "32768", model=MODEL)
        terminal.paste("x " * 15000)
        terminal.wait("paste 1")
        terminal.keys("Enter")
        terminal.wait(r"reading the prompt: \d+ of 30000 tokens, \d+ tok/s, \d+ s left")
        terminal.keys("C-c")
        terminal.wait(r"\[stopped when \d+ of 30000 tokens of the prompt were read\]")
        self.assertNotIn("first token after", self.terminal.screen())

    def test_progress_of_a_narrow_terminal_is_one_line(self):
        for columns in (80, 40, 36):
            terminal = self.start("--raw", "--device", "reference", "--ctx", "32768", model=MODEL, columns=columns)
            terminal.paste("x " * 15000)
            terminal.wait("paste 1")
            terminal.keys("Enter")
            seen = set()
            terminal.until(lambda screen: seen.update(re.findall("reading the.*", screen)) or len(seen) > 3, "four steps")
            self.assertEqual(terminal.screen().count("reading the"), 1)
            terminal.keys("C-c")
            terminal.wait("stopped when")

    def test_a_killed_program_gives_the_terminal_back(self):
        terminal = self.start("--raw", model=MODEL)
        terminal.type("0")
        terminal.keys("Enter")
        terminal.wait("12345")
        os.kill(terminal.process(MOESAIC[0]), signal.SIGTERM)
        self.ends(143)

    def test_markdown_is_shown_and_controls_are_not_obeyed(self):
        self.start(model=HEADING)
        self.send("hello")
        self.assertRegex(self.terminal.screen(), r"(?m)^Ti\u241b\[tle$")
        self.assertRegex(self.terminal.screen(styles=True), r"\x1b\[1(;|m\x1b\[)4m.*Ti\u241b\[tle")

    def test_answers_and_thoughts_wrap_at_words(self):
        question = "Tell me a story about an owl and a lantern."
        plain = subprocess.run([*MOESAIC, "run", "-m", "tiny", "-p", question, "--temp", "0", "-t", "1", "--show-reasoning"],
                               capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        for columns in (80, 40):
            for environment in ({}, {"NO_COLOR": "1"}):
                with self.subTest(columns=columns, **environment):
                    terminal = self.start(columns=columns, **environment)
                    self.send(question)
                    lines = terminal.screen().split(question)[1].split("[")[0].splitlines()
                    self.assertGreater(len(lines), 3)
                    self.assertLessEqual(max(map(len, lines)), columns)
                    shown = " ".join(" ".join(lines).split())
                    for text in (plain.stderr, plain.stdout):
                        self.assertIn(" ".join(text.split()), shown)

    def test_greeting_help_and_notices_wrap_at_words(self):
        for columns in (80, 40):
            with self.subTest(columns=columns):
                terminal = self.start(model=MODEL, columns=columns)
                self.send("/help", answer="ends?")
                self.send("/hlep", answer="/help")
                self.send("hello")
                screen = terminal.screen()
                self.assertLessEqual(max(map(len, screen.splitlines())), columns)
                shown = " ".join(screen.split())
                for text in ("Ctrl-C stops an answer, Ctrl-D ends; /help lists commands.", "/attach FILE send a file's text with the next",
                             "in an empty line twice: end", "a space before the / sends it as a message",
                             "tok/s | prompt", "first token after"):
                    self.assertIn(text, shown)

    def test_no_color_is_heard(self):
        for options, environment in (([], {"NO_COLOR": "1"}), (["--plain"], {}), ([], {"TERM": "dumb"}), ([], {"TERM": ""})):
            self.start(*options, model=HEADING, **environment)
            self.send("hello")
            self.assertRegex(self.terminal.screen(), r"(?m)^# Ti\u241b\[tle$")
            self.assertNotIn("\x1b[1m", self.terminal.screen(styles=True))

    def test_reasoning_is_dimmed(self):
        self.start(model=THINKER)
        self.send("hello")
        self.assertRegex(self.terminal.screen(styles=True), r"\x1b\[2mHm")
        self.assertNotIn("Thinking", self.terminal.screen())

    def test_reasoning_is_labelled_without_styles(self):
        for columns in (80, 40):
            terminal = self.start(model=THINKER, NO_COLOR="1")
            terminal.resize(columns, 24)
            self.send("hello", answer=r"^Thinking\.\.\.\nHm\n\.\.\.done thinking\.$")
            self.assertNotIn("\x1b[", terminal.screen(styles=True))
        self.start(model=THINKER, TERM="")
        self.send("hello", answer=r"^Thinking\.\.\.\nHm\n\.\.\.done thinking\.$")


class OneAnswer(Chat):
    """`run` with a prompt, whose output goes to the terminal."""

    def test_an_answer_of_a_prompt_in_words_and_a_pipe(self):
        words = "printf 'It was night.' | " + " ".join(MOESAIC) + " run tiny -t 1 --temp 0 Tell me a story about an owl and a lantern."
        for columns in (80, 40):
            for environment in ({}, {"NO_COLOR": "1"}):
                with self.subTest(columns=columns, **environment):
                    terminal = tmux.Tmux(["sh", "-c", words], columns=columns, **environment)
                    self.addCleanup(terminal.close)
                    terminal.wait("status 0")
                    screen = terminal.screen().split("status 0")[0]
                    self.assertLessEqual(max(map(len, screen.splitlines())), columns)
                    shown = " ".join(screen.split())
                    for once in ("note: 13 bytes of standard input go behind the prompt", "loaded in", "first token after"):
                        self.assertEqual(shown.count(once), 1, shown)
                    colour = not environment
                    self.assertEqual(("\x1b[2m" in terminal.screen(styles=True).split("status 0")[0], "Thinking..." in shown), (colour, not colour))

    def test_nothing_but_the_answer_leaves_a_pipe(self):
        for columns in (80, 40):
            terminal = tmux.Tmux(["sh", "-c", " ".join(MOESAIC) + f" run {MODEL} -t 1 --temp 0 hello </dev/null 2>/dev/null | od -c"], columns=columns)
            self.addCleanup(terminal.close)
            self.assertEqual(terminal.wait(r"(?s)\A(.*)status 0")[1].split(), ["0000000", "O", "K", "!", "\\n", "0000004"])


class Getting(Chat):
    """`run` of a model that is not here, against a hub on this machine."""

    def begin(self, hub, command):
        self.terminal = tmux.Tmux([*MOESAIC, *command, "-m", "openai/small"] if "run" in command else [*MOESAIC, *command],
                                  HF_ENDPOINT=hub.url, HF_HUB_CACHE=str(self.folder / "hub"), HOME=str(self.folder), NO_PROXY="*")
        self.addCleanup(self.terminal.close)
        return self.terminal

    def test_it_asks_and_gets_it(self):
        with Hub() as hub:
            hub.add("openai/small", {p.name: p.read_bytes() for p in pathlib.Path(MODEL).iterdir()})
            command = ["run", "-t", "1", "-p", "hello"]
            terminal = self.begin(hub, command)
            terminal.wait(r"openai/small is not on this machine. Get \d+\.\d MB from http.*\? \[Y/n\]")
            terminal.type("n")
            terminal.keys("Enter")
            terminal.wait("(?s)moesaic: openai/small: not on this machine; get it: moesaic pull openai/small.*status 1")
            self.assertEqual(hub.seen("cdn"), [])
            terminal = self.begin(hub, command)
            terminal.wait(r"\[Y/n\]")
            terminal.keys("Enter")
            terminal.wait("(?s)OK!.*status 0")
            terminal = self.begin(hub, command)
            self.assertNotIn("Y/n", terminal.wait("(?s).*OK!.*status 0")[0])

    def test_progress_and_an_interrupt(self):
        with Hub() as hub:
            hub.add("openai/small", {"model.safetensors": bytes(9 << 20)})
            hub.stall_at = 3 << 20
            terminal = self.begin(hub, ["pull", "openai/small"])
            terminal.wait(r"openai/small: 3\.1 MB of 9\.4 MB")
            terminal.keys("C-c")
            terminal.wait("status 130")


if __name__ == "__main__":
    if not tmux.available():
        print("skipped: there is no tmux")
        sys.exit(77)
    unittest.main()
