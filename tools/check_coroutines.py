#!/usr/bin/env python3
"""Finds temporaries in operands of co_await that GCC 12 destroys twice.

These are aggregates made by braces or designated initialisers, lambdas with captures, and classes of a conditional expression. Their
types are not known here, so that any brace and any `?` between co_await and the end of its expression is a fault: name the object first.
Prints one line for each fault; exit status 1 if there are any.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OTHER_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def faults(text):
    """The line and the character of each fault in C++."""
    code = OTHER_TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    for await_ in re.finditer(r"\bco_await\b", code):
        depth = 0
        for at in range(await_.end(), len(code)):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(code[at], 0)
            if depth < 0 or code[at] == ";":
                break
            if code[at] in "{?":
                yield code.count("\n", 0, at) + 1, code[at]
                break


def main():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "src", "apps"], cwd=ROOT, capture_output=True,
                           text=True, check=True)
    found = []
    for name in names.stdout.splitlines():
        path = os.path.join(ROOT, name)
        if name.endswith((".h", ".cpp", ".cc")) and os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                found += [f"{name}:{line}: '{mark}' in the operand of co_await: name the object first" for line, mark in faults(file.read())]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
