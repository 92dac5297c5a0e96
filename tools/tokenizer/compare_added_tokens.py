#!/usr/bin/env python3
"""Compares added tokens with huggingface/tokenizers: random ones, found in random texts.

    pip install tokenizers
    compare_added_tokens.py build/release/src/text/text_encode [--rounds N] [--seed N]

Every round writes a tokenizer.json of single bytes, some merges, harmony's special tokens and a few added tokens
whose names overlap each other and those, and encodes 200 texts, with the names of special tokens read and not.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import tokenizers

SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
            "<|message|>", "<|call|>"]
PATTERN = r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("a", "a"), ("aa", "aa"), ("<", "|"), ("|", ">")]
PARTS = ["<", "|", ">", "<|", "|>", "end", "start", "e", "a", "aa", " ", "  ", "\n", "tool", "é", "日本", "hello", "he", "."]


def spelled():
    """GPT-2's spelling of the 256 bytes."""
    plain = [b for b in range(256) if 0x20 < b < 0x7F or (0xA0 < b and b != 0xAD)]
    codes = {b: b for b in plain}
    codes.update({b: 256 + i for i, b in enumerate(b for b in range(256) if b not in codes)})
    return [chr(codes[b]) for b in range(256)]


def added(token_id, content, special, normalized):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special}


def make_file(rng):
    vocab = {c: i for i, c in enumerate(spelled())}
    for left, right in MERGES:
        vocab.setdefault(left + right, len(vocab))
    names = [(name, True, False) for name in SPECIALS]
    while len(names) < 16:
        name = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 3)))
        if len(name.encode()) > 1 and name != "é" and all(name != n[0] for n in names):
            names.append((name, rng.random() < 0.3, rng.random() < 0.5))
    tokens, free = [], 300
    for name, special, normalized in names:
        token_id = vocab.get(name, free)
        free += token_id == free
        tokens.append(added(token_id, name, special, normalized))
    for token in tokens:  # tokenizers numbers what the vocabulary lacks from its size on
        if token["id"] >= 300:
            token["id"] += len(vocab) - 300
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
            "decoder": level, "model": {"type": "BPE", "dropout": None, "unk_token": None,
                                        "continuing_subword_prefix": None, "end_of_word_suffix": None,
                                        "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                                        "vocab": vocab, "merges": [list(m) for m in MERGES]}}


def ours(program, path, texts, special):
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    command = [program, path] + (["special"] if special else [])
    out = subprocess.run(command, input=data, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
    answers, at = [], 0
    for _ in texts:
        count = struct.unpack_from("<I", out, at)[0]
        answers.append(list(struct.unpack_from(f"<{count}i", out, at + 4)))
        at += 4 + 4 * count
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "tokenizer.json")
        for _ in range(options.rounds):
            file = make_file(rng)
            pathlib.Path(path).write_text(json.dumps(file), encoding="utf-8")
            theirs = tokenizers.Tokenizer.from_file(path)
            pieces = PARTS + [t["content"] for t in file["added_tokens"]]
            texts = ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 12))) for _ in range(200)]
            for special in (True, False):
                theirs.encode_special_tokens = not special
                for text, got in zip(texts, ours(options.program, path, texts, special)):
                    want = theirs.encode(text, add_special_tokens=False).ids
                    compared += 1
                    if got != want:
                        names = [(t["content"], t["id"], t["special"], t["normalized"]) for t in file["added_tokens"]]
                        sys.exit(f"{text!r}, special {special}: {got}, tokenizers has {want}\n{names}")
    print(f"{compared} texts encode as tokenizers {tokenizers.__version__} does")


if __name__ == "__main__":
    main()
