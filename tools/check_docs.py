#!/usr/bin/env python3
"""Checks every Markdown page of the repository.

Relative links must lead to a file, and their anchors to a heading. Paths and file names in backticks must exist, but for
docs/lab and the changelog, which keep the names of their date. Commands name a model as it is called once it is got, and
install moesaic from a wheel. A docs/*.md path named in any other file must exist too.
Prints one line for each fault; exit status 1 if there are any.
"""
import fnmatch
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {"build", "node_modules", "__pycache__"}
HISTORY = ("docs/lab/", "CHANGELOG.md")
# Folders in which a path in backticks may begin, beside the root and the page's own folder.
BASES = ("", "src", "src/backend", "src/backend/cuda", "src/backend/cpu", "src/backend/reference", "docs", "include",
         "tools", "tests")
SUFFIXES = ("h", "cpp", "cc", "c", "cu", "cuh", "py", "sh", "md", "in", "cmake", "html")

LINK = re.compile(r"\]\(([^)\s]+)\)")  # the text may begin on the line before
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?!/|~|\.)[\w.*+-]+(/[\w.*+-]*)+")
NAME = re.compile(r"[\w*-]+(\.test)?\.(%s)" % "|".join(SUFFIXES))
BARE_NAME = re.compile(r"\bmoesaic(?: \w+)? (?:-m |--model )?gpt-oss-\d+b(?![.\w-])")  # not what `moesaic pull` gives
FROM_INDEX = re.compile(r"\bpip install moesaic\b")  # which does not have it
MENTION = re.compile(r"(?<![\w/])docs/[\w./-]+\.md")


def files():
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [n for n in names if n not in SKIPPED_FOLDERS and not n.startswith(".")]
        for leaf in leaves:
            yield pathlib.Path(folder, leaf).relative_to(ROOT)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def prose(text):
    """The lines outside of code blocks, with their numbers."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def anchors(page):
    return {slug(line.lstrip("#")) for _, line in prose(page.read_text()) if line.startswith("#")}


class Checker:
    def __init__(self):
        self.all = sorted(files())
        self.names = {path.name for path in self.all}
        self.tops = {path.parts[0] for path in self.all}
        self.faults = []

    def fault(self, path, number, text):
        self.faults.append(f"{path}:{number}: {text}")

    def check_link(self, page, number, target):
        if re.match(r"\w+:", target):
            return
        path, _, anchor = target.partition("#")
        found = ROOT / page if not path else (ROOT / page.parent / path)
        if not found.exists():
            self.fault(page, number, f"no such file: {target}")
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            self.fault(page, number, f"no such heading: {target}")

    def exists(self, page, path):
        bases = [ROOT / base for base in BASES] + [ROOT / page.parent]
        if "*" in path:
            return any(next(base.glob(path), None) for base in bases)
        return any((base / path).exists() for base in bases)

    def check_code(self, page, number, code):
        if "NAME" in code or code.startswith("build/"):
            return
        if PATH.fullmatch(code):
            first = code.split("/")[0]
            known = first in self.tops or any((ROOT / base / first).is_dir() for base in BASES)
            if known and not self.exists(page, code):
                self.fault(page, number, f"no such path: `{code}`")
        elif NAME.fullmatch(code) and not fnmatch.filter(self.names, code):
            self.fault(page, number, f"no such file: `{code}`")

    def check_page(self, page):
        history = str(page).startswith(HISTORY)
        for number, line in prose((ROOT / page).read_text()):
            for target in LINK.findall(CODE.sub("", line)) + LINK.findall(line):
                self.check_link(page, number, target)
            for code in () if history else CODE.findall(line):
                self.check_code(page, number, code)
        for number, line in () if history else enumerate((ROOT / page).read_text().splitlines(), 1):
            for command in BARE_NAME.findall(line):
                self.fault(page, number, f"no name of a model: {command}; write openai/gpt-oss-20b")
            if FROM_INDEX.search(line):
                self.fault(page, number, "PyPI has no moesaic: pip install ./moesaic-*.whl")

    def check_mentions(self, path):
        try:
            text = (ROOT / path).read_text()
        except (UnicodeDecodeError, OSError):
            return
        for number, line in enumerate(text.splitlines(), 1):
            for target in MENTION.findall(line):
                if "harmony" not in line and not (ROOT / target).exists():  # openai/harmony has a docs folder of its own
                    self.fault(path, number, f"no such page: {target}")

    def run(self):
        pages = [path for path in self.all if path.suffix == ".md"]
        for page in pages:
            self.check_page(page)
        for path in self.all:
            if path.suffix != ".md" and path.stat().st_size < 1 << 20:
                self.check_mentions(path)
        faults = list(dict.fromkeys(self.faults))
        print(*faults, sep="\n", end="\n" if faults else "")
        print(f"{len(pages)} pages, {len(faults)} faults")
        return 1 if faults else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(Checker().run())
