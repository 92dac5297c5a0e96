#!/usr/bin/env python3
"""Prints the ranges of src/text/newer_unicode.cpp: letters, marks and numbers of tiktoken's Unicode that this Python's
unicodedata (3.11: Unicode 14, as PCRE2 10.42) does not know yet.

    pip install tiktoken
    make_newer_unicode.py > ranges.txt
"""
import unicodedata

import tiktoken

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "N"]


def members(category, unassigned):
    """The code points that tiktoken's regular expressions count to the category."""
    encoding = tiktoken.Encoding("one", pat_str=rf"\p{{{category}}}", special_tokens={},
                                 mergeable_ranks={bytes([b]): b for b in range(256)})
    matched = encoding.decode(encoding.encode_ordinary("".join(map(chr, unassigned))))
    return [ord(c) for c in matched]


def ranges(points):
    begin = 0
    for i in range(1, len(points) + 1):
        if i == len(points) or points[i] != points[i - 1] + 1:
            yield points[begin], points[i - 1]
            begin = i


def newer_ranges():
    """(first, last, category), by code point."""
    unassigned = [c for c in range(0x80, 0x110000) if unicodedata.category(chr(c)) == "Cn"]
    return sorted((first, last, category) for category in CATEGORIES
                  for first, last in ranges(members(category, unassigned)))


def main():
    rows = newer_ranges()
    print(f"// {sum(last - first + 1 for first, last, _ in rows)} code points, "
          f"Unicode {unicodedata.unidata_version} against tiktoken {tiktoken.__version__}")
    for first, last, category in rows:
        print(f"{{0x{first:X}, 0x{last:X}, k{category}}},")


if __name__ == "__main__":
    main()
