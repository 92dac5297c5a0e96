"""Ctrl-C ends the program promptly and quietly, whatever it is doing; a shell sees status 130."""

import json
import os
import pathlib
import pty
import resource
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request

from cli import FOLDER, MODEL, MOESAIC, THINKER, TIMEOUT, TINY, Cli

PROMPT_SECONDS = 4  # a step of the small model takes much less, under sanitizers and emulators too
BUSY_SECONDS = 20  # the same on a machine that is busy with others


def computed(folder):
    """Seconds of the processor that a process has used, by its folder in /proc."""
    return sum(map(int, (folder / "stat").read_text().rsplit(") ", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def computed_by_ended():
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


class Interrupt(Cli):
    def interrupted(self, process, number=signal.SIGINT):
        """Sends Ctrl-C or another signal; the exit status in a shell's terms. The processor's clock says, too, that it was prompt."""
        before = computed_by_ended() + (computed(pathlib.Path(f"/proc/{process.pid}")) if process.returncode is None else 0)
        start = time.monotonic()
        process.send_signal(number)
        process.wait(BUSY_SECONDS)
        self.assertLess(min(time.monotonic() - start, computed_by_ended() - before), PROMPT_SECONDS)
        code = process.returncode
        return code if code >= 0 else 128 - code

    def start(self, *args, **options):
        process = subprocess.Popen([*MOESAIC, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def until(self, process, reached):
        """Waits for the process to have come so far."""
        end = time.monotonic() + TIMEOUT
        while not reached(pathlib.Path(f"/proc/{process.pid}")):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def until_it_has_computed(self, process, seconds):
        """By the processor's clock, since the machine may be busy with others."""
        self.until(process, lambda folder: computed(folder) >= seconds)

    def test_while_it_loads(self):
        """Memory tells that: of the 6 GB that its weights take, half a GB is there."""
        process = self.start("logits", "-m", "dummy:gpt-oss-20b,layers=8", "--tokens", "1")
        pages = (1 << 29) // os.sysconf("SC_PAGESIZE")
        self.until(process, lambda folder: int((folder / "statm").read_text().split()[1]) > pages)
        self.assertEqual(self.interrupted(process), 130)
        self.assertEqual(process.stdout.read(), b"")

    def test_in_a_long_prefill(self):
        process = self.start("run", "-m", MODEL, "--device", "reference", "--ctx", "32768", "-p", "x " * 15000)
        self.until_it_has_computed(process, 1)
        self.assertEqual(self.interrupted(process), 130)
        self.assertEqual(process.stdout.read(), b"")

    def test_while_it_answers(self):
        process = self.start("run", "-m", MODEL, "--raw", "-p", "0", "--temp", "0", "--ctx", "32768")
        self.assertEqual(process.stdout.read(5), b"12345")
        self.assertEqual(self.interrupted(process), 130)

    def test_while_it_waits_for_a_pipe(self):
        process = self.start("run", "-m", MODEL, "--temp", "0", stdin=subprocess.PIPE)
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.read(4), b"OK!\n")
        self.assertEqual(self.interrupted(process), 130)

    def conversion_in_named_file(self, target, **options):
        """A conversion whose unfinished file has a name, since nothing under /proc can name it later. It has begun to write, or ended."""
        hide = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc/$$/fd && exec "$@"', "sh"]
        if subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
            self.skipTest("this user may not mount")
        process = subprocess.Popen([*hide, *MOESAIC, "convert", TINY, target], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        while process.poll() is None and not list(FOLDER.glob(f"{target.name}.*.part")):
            pass
        return process

    def test_a_conversion_leaves_nothing_behind(self):
        target = FOLDER / "signalled.gguf"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            status = self.interrupted(self.conversion_in_named_file(target), number)
            self.assertIn(status, (128 + number, 0))
            self.assertEqual(list(FOLDER.glob("signalled*")), [target] if status == 0 else [])
            target.unlink(missing_ok=True)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # noqa: E731
        process = self.conversion_in_named_file(target, preexec_fn=limit)
        self.assertNotEqual(process.wait(TIMEOUT), 0)
        self.assertEqual(list(FOLDER.glob("signalled*")), [])

    def test_a_killed_conversion_leaves_nothing_behind(self):
        """Not even by SIGKILL, which no program sees coming."""
        target = FOLDER / "killed.gguf"
        process = self.start("convert", TINY, target)
        while process.poll() is None and not self.writes_into(FOLDER, process):
            pass
        process.kill()
        process.wait(TIMEOUT)
        self.assertLessEqual({path.name for path in FOLDER.glob("killed*")}, {target.name})

    @staticmethod
    def writes_into(folder, process):
        try:
            links = [os.readlink(link) for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:  # one is closed, or the program has ended
            return False
        return any(link.startswith(f"{folder}/") for link in links)

    def test_a_conversion_goes_on_where_a_signal_is_ignored(self):
        target = FOLDER / "signal_ignored.gguf"
        process = self.conversion_in_named_file(target, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(TIMEOUT), 0)
        self.assertEqual(list(FOLDER.glob("signal_ignored*")), [target])

    def test_an_answer_goes_on_where_ctrl_c_is_ignored(self):
        """As in the background jobs of a script."""
        process = self.start("run", "-m", MODEL, "--raw", "-p", "0", "--temp", "0", "--ctx", "2000",
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self.assertEqual(process.stdout.read(5), b"12345")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0)

    def test_as_pid_1(self):
        """As in a container, where the kernel keeps signals without a handler from it."""
        inside = ["unshare", "-rpf"]
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            self.skipTest("this user may make no namespaces")
        for number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([*inside, *MOESAIC, "run", "-m", MODEL, "--temp", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                process.stdin.write(b"hello\n")
                process.stdin.flush()
                self.assertEqual(process.stdout.read(4), b"OK!\n")
                child = int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
                os.kill(child, number)
                self.assertEqual(process.wait(TIMEOUT), 128 + number)

    def test_a_server_that_loads(self):
        """It says how far it is, and ends at once, in the middle of the large tables that come first, too."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("serve", "-m", "dummy:gpt-oss-20b,layers=4", "--tokenizer", f"{TINY}/tokenizer.json", "--ctx", "1024",
                                 "--max-batch", "1", "--device", "cpu", "-t", "1", "--host", "localhost", "--port", "0")
            url = process.stdout.readline().decode().strip()
            self.assertRegex(url, r"\Ahttp://127\.0\.0\.1:\d+\Z")
            self.assertGreaterEqual(json.load(urllib.request.urlopen(url + "/health", timeout=TIMEOUT))["loading"], 0)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + "/ready", timeout=TIMEOUT)
            self.assertRegex(refused.exception.read().decode(), r"the model is being loaded \(\d+%\)")
            refused.exception.close()
            self.assertEqual(self.interrupted(process, number), 0)

    def test_a_server_stays_where_a_signal_is_ignored(self):
        """SIGHUP under nohup, SIGINT in the background jobs of a script."""
        for number in (signal.SIGHUP, signal.SIGINT):
            process = self.start("serve", "-m", MODEL, "--port", "0", preexec_fn=lambda n=number: signal.signal(n, signal.SIG_IGN))
            url = process.stdout.readline().decode().strip()
            process.send_signal(number)
            self.assertEqual(urllib.request.urlopen(url + "/health", timeout=TIMEOUT).status, 200)
            self.assertEqual(self.interrupted(process, signal.SIGTERM), 0)

    def test_twice_while_it_answers(self):
        process = self.start("run", "-m", MODEL, "--device", "reference", "--ctx", "32768", "--raw", "-p", "x " * 15000)
        self.until_it_has_computed(process, 0.5)
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.interrupted(process), 130)


class Terminal(Cli):
    """A conversation on a pseudo-terminal, with the editor of lines."""

    term = "xterm"

    def setUp(self):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([*MOESAIC, "run", "-m", getattr(self, "model", MODEL), "--temp", "0", "--ctx",
                                         getattr(self, "context", "32768"), *getattr(self, "flags", [])],
                                        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        env={**os.environ, "TERM": self.term, "XDG_STATE_HOME": str(FOLDER),
                                             # libedit never frees the names of the functions that el_set() adds.
                                             "ASAN_OPTIONS": "detect_leaks=0"})
        os.close(slave)
        self.seen = ""
        self.addCleanup(lambda: (self.process.kill(), self.process.wait(), os.close(self.master)))

    def expect(self, text):
        """Reads until `text` has come since the last call."""
        end = time.monotonic() + TIMEOUT
        while text not in self.seen:
            self.assertTrue(select.select([self.master], [], [], max(0, end - time.monotonic()))[0], self.seen)
            self.seen += os.read(self.master, 4096).decode(errors="replace")
        self.seen = self.seen.split(text, 1)[1]

    def type(self, text):
        os.write(self.master, text.encode())

    def ends_with(self, status):
        self.process.wait(BUSY_SECONDS)
        code = self.process.returncode
        self.assertEqual(code if code >= 0 else 128 - code, status)

    def test_ctrl_d_ends(self):
        self.expect("> ")
        self.type("hello\r")
        self.expect("OK!")
        self.expect("> ")
        self.type("\x04")
        self.ends_with(0)

    def test_ctrl_c_at_the_prompt(self):
        self.expect("> ")
        self.process.send_signal(signal.SIGINT)
        self.ends_with(130)


class TerminalDumb(Terminal):
    """Without it: the cursor cannot be moved."""

    term = "dumb"

    def test_commands_are_no_messages(self):
        self.expect("/help lists")
        self.type("/system Be brief.\r/system\r")
        self.expect("> Be brief.\r\n")
        self.type("/exit\r")
        self.ends_with(0)


class TerminalRaw(Terminal):
    flags = ["--raw"]
    test_ctrl_d_ends = None

    def test_ctrl_c_stops_an_answer_and_leads_back_to_the_prompt(self):
        self.expect("> ")
        self.type("0\r")
        self.expect("12345")
        self.process.send_signal(signal.SIGINT)
        self.expect("> ")
        self.type("A\r")
        self.expect("BCDE")
        self.process.send_signal(signal.SIGINT)
        self.expect("> ")
        self.type("\x04")
        self.ends_with(0)


class TerminalThinker(Terminal):
    model = THINKER
    test_ctrl_d_ends = test_ctrl_c_at_the_prompt = None

    def test_reasoning_is_dimmed(self):
        self.expect("> ")
        self.type("hello\r")
        self.expect("\x1b[2mHm\x1b[0m")
        self.expect("> ")


class TerminalShort(Terminal):
    context = "300"
    test_ctrl_d_ends = test_ctrl_c_at_the_prompt = None

    def test_a_message_that_is_too_long_does_not_end_the_conversation(self):
        self.expect("> ")
        self.type("x" * 500 + "\r")
        self.expect("maximum context length is 300 tokens")
        self.expect("(--ctx)\r\n")
        self.expect("> ")
        self.type("hello\r")
        self.expect("OK!")
        self.expect("> ")
        self.type("x" * 500 + "\r")
        self.expect("/clear forgets")
        self.expect("> ")
        self.type("\x04")
        self.ends_with(0)
