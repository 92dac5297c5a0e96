#!/usr/bin/env python3
"""Finds names in comments that no longer exist, and comments that do not begin with their subject.

A name is what stands in backticks or before (), and what can be no plain word: snake_case, CamelCase, kConstant. It, or its singular,
must occur in the code, in a CMake file or as a part of a file's name. Names of other projects that comments speak of are listed here.
A comment that begins with "of", "that", "whose", "what" or "whether" sends its reader back for the subject.
Prints one line for each fault; exit status 1 if there are any.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OTHERS = set("""AddressSanitizer AutoTokenizer ChatCompletionRequest E5M2 F16C GenerationConfig HuggingFace LeakSanitizer MessagePack
    CommonMark ModelOpt NaN OpenRouter PipelineTmaAsync PretrainedConfig SpecForge SplitMix64 UndefinedBehaviorSanitizer bytes_to_unicode
    computer_call groff_man kDLCUDA length_error my_field ntk_alpha ntk_beta reserved_N result_expression serde_json server__search
    status_expression""".split())
COMMENTED = {".h": "//", ".cpp": "//", ".cc": "//", ".c": "//", ".cu": "//", ".cuh": "//", ".py": "#", ".sh": "#", ".js": "//"}
OTHER_CODE = (".txt", ".cmake", ".in", ".html", ".css")
FRAGMENT = re.compile(r"\s*(?:of|that|whose|what|whether)\b", re.IGNORECASE)
WORD = re.compile(r"\w+")
# Not paths, members of foreign things (a.b) and subscripts of formulas (w_j).
NAME = re.compile(r"(?<![\w.:/<-])([A-Za-z_]\w*)\(\)|`([A-Za-z_]\w*)`|"
                  r"(?<![\w./<$-])(?!\w+_\w\b)([a-z]\w*_\w+|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+|k[A-Z]\w+)(?![\w./])")


def split(name, text):
    """The file's code, and its comments as (line number, text, whether it goes on from the line before)."""
    mark = COMMENTED.get(os.path.splitext(name)[1])
    code, comments, alone = [], [], False
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(rf"(?:^|\s){mark}(.*)", line) if mark else None
        if found:
            goes_on, alone = alone and not line[:found.start()].strip(), not line[:found.start()].strip()
            comments.append((number, found.group(1), goes_on))
            line = line[:found.start()]
        else:
            alone = False
        code.append(line)
    return "\n".join(code), comments


def main():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    known, comments = set(OTHERS), []
    for name in names.stdout.splitlines():
        known.update(WORD.findall(name))
        path = os.path.join(ROOT, name)
        if name.endswith((*COMMENTED, *OTHER_CODE)) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                code, found = split(name, file.read())
            known.update(WORD.findall(code))
            comments += [(name, *comment) for comment in found]
    faults = [f"{name}:{number}: no such name: {word}" for name, number, text, _ in comments
              for match in NAME.finditer(text) for word in filter(None, match.groups()) if word not in known and word.removesuffix("s") not in known]
    faults += [f"{name}:{number}: begin with the subject: {text.strip()}" for name, number, text, goes_on in comments
               if not goes_on and FRAGMENT.match(text)]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(comments)} lines of comments, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
