#!/usr/bin/env python3
"""Held-out prompts of models/tiny, for bench/speculation: each followed by a zero byte.

    prompts.py COUNT > FILE
"""

import random
import sys

import corpus

rng = random.Random(99)
for _ in range(int(sys.argv[1])):
    _, _, segments = corpus.conversation(rng, held_out=True)
    sys.stdout.write("".join(text for text, _ in segments[:2]) + "\0")
