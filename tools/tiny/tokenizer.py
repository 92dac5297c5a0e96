#!/usr/bin/env python3
"""Trains models/tiny/tokenizer.json: byte-level BPE with o200k's split pattern and harmony's special tokens.

    tokenizer.py OUT/tokenizer.json [--samples N]
    tokenizer.py --check tokenizer.json --moesaic BINARY    compares its ids with the engine's

Digits are split singly while merges are learned, so no merge joins digits and every number is read digit by digit,
although the pattern itself takes up to three at a time.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

SIZE = 4096
SPECIAL = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
]
# openai/tiktoken, tiktoken_ext/openai_public.py: o200k_base.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, SHORT = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        LEAD + UPPER + "*" + LOWER + "+" + SHORT,
        LEAD + UPPER + "+" + LOWER + "*" + SHORT,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def pieces(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        for text, _ in corpus.sample(rng)[1]:
            for name in SPECIAL:
                text = text.replace(name, "\n")
            yield text


def train(path, count):
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Digits(individual_digits=True), as_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(pieces(count, 77), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    assert tokenizer.get_vocab_size() == SIZE, tokenizer.get_vocab_size()
    tokenizer.save(str(path), pretty=False)
    print(f"{path}: {tokenizer.get_vocab_size()} tokens, {pathlib.Path(path).stat().st_size} bytes")


ODD = [
    "Grüße, 東京 und Ελλάδα!",
    "I'll we've they'D X's",
    "1234567 3.14 1,000,000",
    "  two  spaces \n\n\n and\ttabs \r\n",
    "naïve café 🙂🙃",
    "def f(x):\n    return x\n",
    "{\"a\": [1, 2]}",
]


def check(path, moesaic, count):
    ours = Tokenizer.from_file(str(path))
    rng, texts = random.Random(5), list(ODD)
    texts += ["".join(t for t, _ in corpus.sample(rng, True)[1]) for _ in range(count)]
    wrong = 0
    for text in texts:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", newline="") as f:
            f.write(text)
            f.flush()
            out = subprocess.run(
                [moesaic, "tokenize", "-m", str(path), "--special", "-f", f.name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        if json.loads(out)["tokens"] != ours.encode(text).ids:
            wrong += 1
            print("differs:", repr(text[:80]), out[:200], ours.encode(text).ids[:20])
    print(f"{len(texts)} texts, {wrong} differ")
    return wrong == 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("path", type=pathlib.Path)
    p.add_argument("--samples", type=int, default=60000)
    p.add_argument("--check", action="store_true")
    p.add_argument("--moesaic", default="moesaic")
    a = p.parse_args()
    if a.check:
        raise SystemExit(not check(a.path, a.moesaic, 100))
    train(a.path, a.samples)


if __name__ == "__main__":
    main()
