#!/usr/bin/env python3
"""Encodes random texts with moesaic and with openai/tiktoken and reports every difference.

    pip install tiktoken
    compare_tiktoken.py BUILD/src/text/text_encode o200k_base.tiktoken [--texts 20000] [--seed 1] [--corpus FILE]
"""
import argparse
import random
import struct
import subprocess
import sys
import time

import tiktoken
from tiktoken.load import load_tiktoken_bpe

from make_newer_unicode import newer_ranges

# The same as tiktoken's o200k_base (tiktoken_ext/openai_public.py).
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, CONTRACTION = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    f"{LEAD}{UPPER}*{LOWER}+{CONTRACTION}", f"{LEAD}{UPPER}+{LOWER}*{CONTRACTION}", r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIALS = {"<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|return|>": 200002, "<|constrain|>": 200003,
            "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007, "<|message|>": 200008,
            "<|call|>": 200012}
NAMED = set(SPECIALS.values())
SPECIALS |= {f"<|reserved_{i}|>": i for i in range(199998, 201088) if i not in NAMED}
WORDS = ["hello", " world", "'s", "'S", "'\u017f", "'LL", "don't", "McDonald", "ǅ", "ﬁ", "日本語", "한국어", "हिन्दी",
         "  ", "\n", "\r\n", "\t", "\u00a0", "\u180e", "\u0085", "\u2028", "\u200b", "\u3000", "123", "4567", "½", "Ⅷ",
         "...", "//", "/\n", "!!", "👩‍👩‍👧", "e\u0301", "\u0345", "<|start|>", "<|end|>", "<|reserved_200500|>", "<|", "|>",
         "İ", "K", "ß", "١٢٣", "\x00", "\x7f", "a" * 70, " " * 70, "=" * 70, "def f(x):\n    return x"]


NEWER = [chr(c) for first, last, _ in newer_ranges() for c in range(first, last + 1)] or WORDS


def random_text(rng):
    style = rng.randrange(5)
    count = rng.choice([1, 3, 10, 40, 200])
    if style == 0:
        return "".join(rng.choice(WORDS) for _ in range(count))
    if style == 1:
        return "".join(chr(rng.randrange(128)) for _ in range(count))
    if style == 2:
        low = rng.randrange(0x30000)
        return "".join(chr(c) for c in (rng.randrange(low, low + 256) for _ in range(count))
                       if not 0xD800 <= c < 0xE000)
    if style == 3:
        return "".join(rng.choice([rng.choice(NEWER), rng.choice(WORDS), rng.choice("aA1' .")]) for _ in range(count))
    letters = "aAbB éÉ'sSt1 \n\t.日ー\u0301"
    return "".join(rng.choice(letters) for _ in range(count))


def run_ours(program, vocabulary, texts, special):
    encoded = [text.encode() for text in texts]
    data = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    done = subprocess.run([program, vocabulary] + ["special"] * special, input=data, capture_output=True, check=True)
    answers, at = [], 0
    for _ in texts:
        count, = struct.unpack_from("<I", done.stdout, at)
        answers.append(list(struct.unpack_from(f"<{count}i", done.stdout, at + 4)))
        at += 4 + 4 * count
    return answers, float(done.stderr.split()[0])


def compare(encoding, program, vocabulary, texts, special):
    ours, our_seconds = run_ours(program, vocabulary, texts, special)
    begin = time.perf_counter()
    if special:
        theirs = [encoding.encode(text, allowed_special="all") for text in texts]
    else:
        theirs = [encoding.encode_ordinary(text) for text in texts]
    seconds = time.perf_counter() - begin
    different = [text for text, a, b in zip(texts, ours, theirs) if a != b]
    size = sum(len(text.encode()) for text in texts)
    print(f"special={special}: {len(texts)} texts, {size / 1e6:.2f} MB, {len(different)} differ; "
          f"moesaic {size / 1e6 / our_seconds:.2f} MB/s, "
          f"tiktoken {size / 1e6 / seconds:.2f} MB/s, one thread each")
    for text in different[:10]:
        print("  ", ascii(text)[:200])
    return len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("vocabulary")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", help="a UTF-8 file, encoded once more in pieces of 4096 characters")
    options = parser.parse_args()
    encoding = tiktoken.Encoding("o200k_harmony", pat_str=PATTERN, special_tokens=SPECIALS,
                                 mergeable_ranks=load_tiktoken_bpe(options.vocabulary))
    rng = random.Random(options.seed)
    texts = [random_text(rng) for _ in range(options.texts)]
    failures = sum(compare(encoding, options.program, options.vocabulary, texts, special) for special in (False, True))
    if options.corpus:
        with open(options.corpus, encoding="utf-8", errors="replace") as file:
            text = file.read()
        pieces = [text[i:i + 4096] for i in range(0, len(text), 4096)]
        failures += compare(encoding, options.program, options.vocabulary, pieces, False)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
