"""A program in a terminal of its own: keys go in, the screen comes out."""

import itertools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import time

_number = itertools.count()


def available():
    return shutil.which("tmux") is not None


class Tmux:
    def __init__(self, command, columns=100, rows=30, timeout=60, **environment):
        """Runs `command`, a list, in a terminal; the state of the terminal follows when it has ended. timeout: seconds to wait
        for what the screen must show."""
        self.timeout = timeout
        self.socket = f"moesaic-{os.getpid()}-{next(_number)}"
        self.folder = tempfile.mkdtemp(prefix="moesaic-tmux-")
        variables = {"LANG": "C.UTF-8", "TERM": "xterm-256color", **environment}
        line = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        # The shell hears Ctrl-C as well, and must not end of it.
        line = "trap : INT; " + line + " " + shlex.join(map(str, command)) + "; echo \"status $?\"; stty -a; sleep 1000"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "env -u NO_COLOR sh -c " + shlex.quote(line))

    def tmux(self, *args, stdin=None):
        return subprocess.run(["tmux", "-u", "-L", self.socket, *args], check=True, capture_output=True, text=True, input=stdin,
                              env={**os.environ, "LANG": "C.UTF-8", "TMUX_TMPDIR": self.folder}).stdout

    def close(self):
        self.tmux("kill-server")
        shutil.rmtree(self.folder, ignore_errors=True)

    def screen(self, styles=False):
        """All lines so far, those that the terminal broke as one."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-2000", *(["-e"] if styles else []))

    def wait(self, pattern):
        """Until the screen matches; the match."""
        return self.until(lambda screen: re.search(pattern, screen, re.MULTILINE), pattern)

    def until(self, test, what):
        """Until the test of the screen gives something; that."""
        end = time.monotonic() + self.timeout
        while True:
            screen = self.screen()
            if found := test(screen):
                return found
            if time.monotonic() > end:
                raise AssertionError(f"no {what!r} on the screen:\n{screen}")
            time.sleep(0.02)

    def keys(self, *names):
        """Keys by tmux's names: Enter, Left, C-c."""
        self.tmux("send-keys", *names)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def paste(self, text, marks=True):
        """marks: as a paste, where the program asks for these; else as if it were typed."""
        self.tmux("load-buffer", "-", stdin=text)
        self.tmux("paste-buffer", *(["-p"] if marks else []))

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def process(self, program):
        """The number of the process that runs `program` in the terminal."""
        numbers = [int(self.tmux("display-message", "-p", "#{pane_pid}"))]
        for number in numbers:
            command = pathlib.Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            if command[0] == program.encode():
                return number
            numbers += map(int, pathlib.Path(f"/proc/{number}/task/{number}/children").read_text().split())
        raise AssertionError(f"{program} does not run")
