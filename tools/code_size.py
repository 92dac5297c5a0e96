#!/usr/bin/env python3
"""Lines of the product by folder, and how long its functions are.

    tools/code_size.py [REVISION...]     the working tree, or commits beside each other

Product: C++ and CUDA, Python and the page's files in src, apps, include and python, without tests, fuzz targets and headers that only those include.
A function's length is its lines without the closing brace's: median, nine tenths, and the share over 60 lines.
"""
import collections
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRODUCT = re.compile(r"(?:src|apps|include|python)/.*\.(?:h|cpp|cc|c|cu|cuh|py|js|css|html)$")
TESTS = re.compile(r"_(?:test|fuzz)\.cc$|/(?:testing|tests)/")
INCLUDE = re.compile(r'^ *# *include [<"]([\w./]+)[>"]', re.MULTILINE)
FOLDER = re.compile(r"(?:src/backend/(?:cuda|cpu|reference)|src/\w+|[\w]+)(?=/)|src/backend")
NO_FUNCTION = re.compile(r"\s*(?:namespace|struct|class|enum|union|if|for|while|switch|else|do|try|extern|case|default|catch|template|using|\})\b|"
                         r".*\]\s*(?:\([^)]*\))?\s*(?:mutable\s*)?\{$|.*=\s*\{$")
RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, errors="replace").stdout


def files(revision):
    """{name: text} of the product."""
    names = git("ls-tree", "-r", "--name-only", revision).splitlines() if revision else git("ls-files").splitlines()
    names = [name for name in names if PRODUCT.match(name) and not TESTS.search(name)]
    if not revision:
        texts = {}
        for name in names:
            with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as file:
                texts[name] = file.read()
        return without_test_headers(texts)
    feed = "".join(f"{revision}:{name}\n" for name in names).encode()
    out = subprocess.run(["git", "cat-file", "--batch"], cwd=ROOT, input=feed, capture_output=True, check=True).stdout
    texts, at = {}, 0
    for name in names:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        texts[name] = out[end + 1:end + 1 + size].decode(errors="replace")
        at = end + size + 2
    return without_test_headers(texts)


def without_test_headers(texts):
    included = {path for text in texts.values() for path in INCLUDE.findall(text)}
    parts = {name: name.split("/") for name in texts if name.endswith(".h") and not name.startswith("include/")}
    unread = {name for name, path in parts.items() if not any("/".join(path[i:]) in included for i in range(len(path)))}
    return without_test_headers({name: text for name, text in texts.items() if name not in unread}) if unread else texts


def function_lengths(text):
    """A function's closing brace has the indentation of its signature, as clang-format writes it."""
    lines, found, number = RAW_STRING.sub('""', text).splitlines(), [], 0
    while number < len(lines):
        line = lines[number]
        indent = len(line) - len(line.lstrip())
        if indent > 4 or not line.rstrip().endswith("{") or NO_FUNCTION.match(line) or "(" not in "".join(lines[first_line(lines, number):number + 1]):
            number += 1
            continue
        start = first_line(lines, number)
        if NO_FUNCTION.match(lines[start]) and not lines[start].lstrip().startswith("template"):
            number += 1
            continue
        indent = len(lines[start]) - len(lines[start].lstrip())
        end = next((i for i in range(number + 1, len(lines)) if re.match(" " * indent + r"\}", lines[i])), None)
        if end is None:
            break
        found.append(end - start)
        number = end + 1
    return found


def first_line(lines, number):
    """The line in which the declaration begins that ends in this line."""
    start = number
    while start > 0 and lines[start - 1].strip() and not re.search(r"[;{}:]$|^\s*(?://|#)", lines[start - 1].rstrip()):
        start -= 1
    return start


def lengths_line(texts, names):
    found = sorted(length for name in names for length in function_lengths(texts[name]))
    over = sum(length > 60 for length in found)
    return f"{statistics.median(found):g}/{found[len(found) * 9 // 10]}/{100 * over / len(found):.1f}% of {len(found)}"


def main():
    revisions = sys.argv[1:] or [""]
    counts, lengths = [], []
    for revision in revisions:
        texts = files(revision)
        lines = collections.Counter()
        for name, text in texts.items():
            lines[FOLDER.match(name).group()] += len(text.splitlines())
        counts.append(lines)
        code = [name for name in texts if name.endswith((".h", ".cpp", ".cu", ".cuh"))]
        cuda = [name for name in code if name.endswith((".cu", ".cuh"))]
        lengths.append((lengths_line(texts, sorted(set(code) - set(cuda))), lengths_line(texts, cuda)))
    width = max(12, *(len(revision) + 2 for revision in revisions))
    print(f"{'folder':24}" + "".join(f"{revision or 'working tree':>{width + 2}}" for revision in revisions))
    for folder in sorted(set().union(*counts)):
        print(f"{folder:24}" + "".join(f"{lines[folder]:{width + 2}}" for lines in counts))
    print(f"{'all':24}" + "".join(f"{sum(lines.values()):{width + 2}}" for lines in counts))
    for i, kind in enumerate(("host functions", "CUDA functions")):
        print(f"{kind}: " + ", ".join(row[i] for row in lengths))


if __name__ == "__main__":
    main()
