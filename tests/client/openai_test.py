"""The official openai client, unmodified, against models/tiny. Without the package it makes a virtual environment with it
and runs there; exit status 77 where that cannot be done."""

import os
import pathlib
import subprocess
import sys
import unittest

SKIPPED = 77
FOLDER = pathlib.Path(__file__).resolve().parent


def run_in_venv():
    venv = pathlib.Path(os.environ.get("MOESAIC_VENV", "build/venv-openai"))
    python = venv / "bin" / "python"
    if not (venv / "installed").exists():
        # The version that `make clients` takes; LATEST=1 there tries newer ones.
        openai = next(line for line in (FOLDER / "ecosystem/requirements.txt").read_text().splitlines() if line.startswith("openai=="))
        for command in ([sys.executable, "-m", "venv", str(venv)],
                        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", openai]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                print(f"skipped: no openai client here: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
                sys.exit(SKIPPED)
        (venv / "installed").touch()
    sys.exit(subprocess.run([str(python), "-B", __file__, "--installed"]).returncode)


if __name__ == "__main__":
    try:
        import openai
    except ImportError:
        if "--installed" in sys.argv:
            raise
        run_in_venv()
    sys.path.insert(0, str(FOLDER))
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromName(name)
                               for name in ("openai_chat", "openai_fields", "openai_more", "openai_responses"))
    print(f"openai {openai.__version__}")
    sys.exit(0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1)
