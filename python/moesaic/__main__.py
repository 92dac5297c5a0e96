"""python -m moesaic COMMAND ..: the program, with all of its commands."""

import os
import signal
import sys

from ._engine import run_main


def main() -> int:
    # The program's own ways with signals, instead of Python's.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if sys.stdout is not None:  # else it is closed
        sys.stdout.flush()
    return run_main([b"moesaic", *map(os.fsencode, sys.argv[1:])])


if __name__ == "__main__":
    sys.exit(main())
