#!/usr/bin/env python3
"""Writes tests/golden/text/encode.json: tricky texts and the tokens that openai/tiktoken gives them.

    pip install tiktoken
    make_encode_goldens.py o200k_base.tiktoken [--out FILE]

Each case is a text, its tokens as plain text and its tokens with special names parsed.
"""
import argparse
import json
import pathlib
import random

import tiktoken
from compare_tiktoken import PATTERN, SPECIALS, WORDS, random_text
from tiktoken.load import load_tiktoken_bpe

DEFAULT_OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/text/encode.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocabulary")
    parser.add_argument("--out", default=DEFAULT_OUT)
    options = parser.parse_args()
    encoding = tiktoken.Encoding("o200k_harmony", pat_str=PATTERN, special_tokens=SPECIALS,
                                 mergeable_ranks=load_tiktoken_bpe(options.vocabulary))
    rng = random.Random(1)
    texts = WORDS + [random_text(rng)[:120] for _ in range(150)]
    cases = [{"text": text, "plain": encoding.encode_ordinary(text),
              "special": encoding.encode(text, allowed_special="all")} for text in texts]
    lines = [json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases]
    with open(options.out, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
