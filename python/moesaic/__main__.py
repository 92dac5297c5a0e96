"""python -m moesaic COMMAND ..: the program, with all of its commands."""

import signal
import sys

from ._engine import run_main


def main() -> int:
    # The program's own ways with signals, instead of Python's.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    return run_main(["moesaic", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
