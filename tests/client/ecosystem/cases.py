"""Runs one module of cases and prints, as the last line, what came of them as JSON: run.py reads it."""

import json
import pathlib
import sys
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


LOCAL = {"127.0.0.1", "::1", "localhost", "0.0.0.0", "", None}


def stay_here(event, args):
    """Refuses every address but this machine's: a client that reports home fails its case."""
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in LOCAL:
        raise ConnectionRefusedError(f"these cases use this machine only, not {args[1][0]}")
    if event == "socket.getaddrinfo" and args[0] not in LOCAL and args[0] not in (b"127.0.0.1", b"localhost"):
        raise ConnectionRefusedError(f"these cases use this machine only, not {args[0]}")


def summary(result):
    errors = [case.id() for case, _ in result.failures + result.errors]
    errors += [f"{case.id()} passes now: remove its mark" for case in result.unexpectedSuccesses]
    known = [f"{case.id()}: {case.shortDescription() or 'see the case'}" for case, _ in result.expectedFailures]
    passed = result.testsRun - len(errors) - len(known) - len(result.skipped)
    return {"passed": max(passed, 0), "failed": len(errors), "skipped": len(result.skipped), "known": known, "errors": errors}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.addaudithook(stay_here)
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, warnings="ignore").run(suite)
    print(json.dumps(summary(result)), flush=True)
    sys.exit(0 if result.wasSuccessful() else 1)
