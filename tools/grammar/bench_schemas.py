#!/usr/bin/env python3
"""Measure src/grammar on files of schemas with instances: what is refused, what is answered wrong, and the time.

Reads a folder of JSON files as jsonschemabench's maskbench/data ({"schema", "tests": [{"data", "valid"}]}) or JSON Schema
Test Suite's tests/draft2020-12 (a list of these). Instances are written as json.dumps does. Random walks through the
masks give answers, which jsonschema (PyPI) then checks. Results, one line a schema, go to a file.

    ninja -C build grammar_check
    tools/grammar/bench_schemas.py build/src/grammar/grammar_check FOLDER --walks 3 --out results.jsonl
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

import jsonschema

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Program:
    def __init__(self, path, tokenizer):
        self.path, self.tokenizer = path, tokenizer
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.path, self.tokenizer], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **question):
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            self.start()
            return {"error": "the program ended", "compile_us": 0}


def cases(folder, step):
    """(name, schema, tests) of every step-th file."""
    names = sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".json"))
    for path in names[::step]:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        for i, case in enumerate(content if isinstance(content, list) else [content]):
            name = f"{os.path.relpath(path, folder)}:{i} {case.get('description', '')}" if isinstance(content, list) else \
                os.path.basename(path)
            yield name, case["schema"], case["tests"]


def validator_of(schema):
    kind = jsonschema.Draft202012Validator
    if isinstance(schema, dict) and "$schema" in schema:
        kind = jsonschema.validators.validator_for(schema, default=kind)
    return kind(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def reason(error):
    """An error without the names in it."""
    return re.sub(r'"[^"]*"', '""', error.split(": ")[-1])[:80]


def check(program, name, schema, tests, args):
    texts = [json.dumps(test["data"], ensure_ascii=False) for test in tests]
    times = [text for text, test in zip(texts, tests) if test["valid"]][:2] if args.times else []
    answer = program.ask(schema=schema, texts=texts, walks=args.walks, times=times, seed=len(name))
    result = {"name": name, "compile_us": answer["compile_us"]}
    if "error" in answer:
        return result | {"error": answer["error"]}
    result |= {"notes": answer["notes"], "mask_us": answer["mask_us"]}
    pairs = list(zip(texts, tests, answer["taken"]))
    result["valid_taken"] = sum(test["valid"] and taken for _, test, taken in pairs)
    result["valid_refused"] = [text[:2000] for text, test, taken in pairs if test["valid"] and not taken]
    result["invalid_taken"] = [text[:2000] for text, test, taken in pairs if not test["valid"] and taken]
    result["invalid_refused"] = sum(not test["valid"] and not taken for _, test, taken in pairs)
    validator = validator_of(schema)
    result["walks"], result["walks_wrong"] = 0, []
    for text in answer["texts"]:
        if text is None:
            continue
        result["walks"] += 1
        try:
            wrong = next(validator.iter_errors(json.loads(text)), None)
            if wrong is not None:
                result["walks_wrong"].append([text[:2000], wrong.message[-300:], str(wrong.validator)])
        except Exception as error:  # the oracle's own limits: other documents, patterns that Python does not know
            kind = "walks_wrong" if isinstance(error, ValueError) and "Expecting" in str(error) else "oracle_failed"
            result.setdefault(kind, []).append([text[:2000], repr(error)[-200:], "oracle"])
    return result


def quantiles(values):
    values = sorted(values)
    at = lambda q: values[min(len(values) - 1, int(q * len(values)))] if values else 0
    return {"n": len(values), "mean": sum(values) / max(1, len(values)), "p50": at(.5), "p99": at(.99), "p999": at(.999), "max": at(1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--tokenizer", default=os.path.join(ROOT, "models/tiny/tokenizer.json"))
    parser.add_argument("--walks", type=int, default=0, help="random answers a schema")
    parser.add_argument("--times", action="store_true", help="time the masks along two valid instances a schema")
    parser.add_argument("--step", type=int, default=1, help="only every STEP-th file")
    parser.add_argument("--out")
    args = parser.parse_args()
    program = Program(args.program, args.tokenizer)
    out = open(args.out, "w", encoding="utf-8") if args.out else None
    total, reasons, compile_us, mask_us = collections.Counter(), collections.Counter(), [], []
    for name, schema, tests in cases(args.folder, args.step):
        result = check(program, name, schema, tests, args)
        total["schemas"] += 1
        compile_us.append(result["compile_us"])
        if out:
            out.write(json.dumps(result) + "\n")
        if "error" in result:
            total["refused"] += 1
            reasons[reason(result["error"])] += 1
            continue
        mask_us += result["mask_us"]
        for key in ("valid_taken", "invalid_refused", "walks"):
            total[key] += result[key]
        for key in ("valid_refused", "invalid_taken", "walks_wrong", "oracle_failed"):
            total[key] += len(result.get(key, []))
    for line, count in reasons.most_common(60):
        print(f"{count:6} {line}")
    print(json.dumps(total))
    print("compile, us:", {k: round(v) for k, v in quantiles(compile_us).items()})
    print("mask, us:", {k: round(v) for k, v in quantiles(mask_us).items()})


if __name__ == "__main__":
    sys.exit(main())
