"""What the tests share: the program, its models and a way to run it."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import unittest

import small_model

# The program, after an emulator's words where it needs one.
MOESAIC = shlex.split(os.environ.get("MOESAIC", "moesaic"))
# examples/generate.cpp, the same way; None where the tests run without CMake.
EXAMPLE = [*MOESAIC[:-1], os.environ["MOESAIC_EXAMPLE"]] if "MOESAIC_EXAMPLE" in os.environ else None
SANITIZED = "MOESAIC_SANITIZED" in os.environ
# For tests with models of true shapes: a sanitizer takes minutes to make their weights.
true_shapes = unittest.skipIf(SANITIZED, "true shapes")
# For tests that compute much, with code that the unit tests run under sanitizers, too.
takes_minutes = unittest.skipIf(SANITIZED, "takes minutes under a sanitizer")
_folder = tempfile.TemporaryDirectory(prefix="moesaic-cli-")
FOLDER = pathlib.Path(_folder.name)
MODEL = str(small_model.make(FOLDER / "model"))
THINKER = str(small_model.make(FOLDER / "thinker", small_model.THOUGHT))
CALLER = str(small_model.make(FOLDER / "caller", small_model.CALL))
TINY = str(pathlib.Path(__file__).resolve().parents[2] / "models/tiny")
# Servers of this machine are asked without a proxy.
os.environ["no_proxy"] = "127.0.0.1,localhost," + os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
# A background job of a script has SIGINT ignored, and programs that are started here would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
TIMEOUT = 240 if SANITIZED else 60  # seconds; a command takes a tenth of one, under sanitizers and emulators much more


# Beside other tests, threads that wait for each other cost more than they help with so small a model.
ONE_THREAD = {"run", "bench", "logits", "perplexity", "profile", "verify"}


class Cli(unittest.TestCase):
    def moesaic(self, *args, stdin="", **options):
        if args and args[0] in ONE_THREAD and "-t" not in args:
            args = (*args, "-t", 1)
        return subprocess.run([*MOESAIC, *map(str, args)], input=stdin, capture_output=True, text=True,
                              timeout=TIMEOUT, **options)

    def ok(self, *args, **options):
        """Runs a command that must succeed; its standard output."""
        done = self.moesaic(*args, **options)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return done.stdout

    def json(self, *args, **options):
        return json.loads(self.ok(*args, **options))

    def refused(self, status, words, *args, **options):
        """Runs a command that must fail with `status` and one line that matches each of `words`."""
        done = self.moesaic(*args, **options)
        self.assertEqual(done.returncode, status, f"{args}: {done.stdout} {done.stderr}")
        self.assertEqual(done.stdout, "", args)
        self.assertRegex(done.stderr, r"\Amoesaic: [^\n]*\n\Z", args)
        for word in words if isinstance(words, (list, tuple)) else [words]:
            self.assertIsNotNone(re.search(word, done.stderr), f"{args}: {word!r} in {done.stderr!r}")
