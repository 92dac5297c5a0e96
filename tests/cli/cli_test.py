"""Runs every *_test.py of this folder: cli_test.py PROGRAM [after an emulator's words]."""

import os
import pathlib
import shlex
import sys
import unittest

if __name__ == "__main__":
    os.environ["MOESAIC"] = shlex.join(sys.argv[1:])
    folder = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(folder))
    suite = unittest.TestSuite(unittest.defaultTestLoader.discover(str(folder), p, top_level_dir=str(folder))
                               for p in ("bench_serve_test.py", "commands_test.py", "failures_test.py", "lora_test.py", "names_test.py", "signals_test.py"))
    sys.exit(0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1)
