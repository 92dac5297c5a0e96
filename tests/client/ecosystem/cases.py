"""Runs one module of cases and prints, as the last line, what came of them as JSON: run.py reads it."""

import json
import pathlib
import sys
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


def summary(result):
    errors = [case.id() for case, _ in result.failures + result.errors]
    errors += [f"{case.id()} passes now: remove its mark" for case in result.unexpectedSuccesses]
    known = [f"{case.id()}: {case.shortDescription() or 'see the case'}" for case, _ in result.expectedFailures]
    passed = result.testsRun - len(errors) - len(known) - len(result.skipped)
    return {"passed": max(passed, 0), "failed": len(errors), "skipped": len(result.skipped), "known": known, "errors": errors}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, warnings="ignore").run(suite)
    print(json.dumps(summary(result)), flush=True)
    sys.exit(0 if result.wasSuccessful() else 1)
