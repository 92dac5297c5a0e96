#!/usr/bin/env python3
"""Greedy output of 256 tokens on 32 prompts: transformers (float32, CPU) against the engine's backends.

    compare.py MODEL --answer BINARY [--device reference cpu] [-n 32] [--tokens 256]

transformers runs on the dequantised weights. For every first difference the margin is printed: by how much the
token that transformers chose leads the other one's logit there.
"""

import argparse
import json
import random
import subprocess

import torch
from tokenizers import Tokenizer
from transformers import GptOssForCausalLM
from transformers.utils import logging

import corpus
import stories

logging.set_verbosity_error()
torch.set_num_threads(1)


def prompts(count):
    rng = random.Random(2024)
    texts = []
    for i in range(count):
        _, _, segments = corpus.conversation(rng, True, stories.tell_story if i % 4 == 0 else None)
        texts.append("".join(text for text, _ in segments[:2]))
    return texts


def greedy(model, ids, count):
    """(tokens, logits): past the end token too."""
    tokens, rows, cache, step = [], [], None, torch.tensor([ids])
    for _ in range(count):
        with torch.no_grad():
            out = model(step, past_key_values=cache, use_cache=True)
        cache, row = out.past_key_values, out.logits[0, -1]
        rows.append(row)
        tokens.append(int(row.argmax()))
        step = torch.tensor([tokens[-1:]])
    return tokens, rows


def ask(answer, model, device, texts, count):
    lines = "".join(json.dumps({"prompt": t, "max_tokens": count, "stop": False}) + "\n" for t in texts)
    out = subprocess.run([answer, model, "1", device], input=lines, capture_output=True, text=True, check=True).stdout
    return {json.loads(line)["index"]: json.loads(line)["tokens"] for line in out.splitlines()}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("model")
    p.add_argument("--answer", default="answer")
    p.add_argument("--device", nargs="+", default=["reference", "cpu"])
    p.add_argument("-n", type=int, default=32)
    p.add_argument("--tokens", type=int, default=256)
    a = p.parse_args()
    tokenizer = Tokenizer.from_file(a.model + "/tokenizer.json")
    model = GptOssForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    texts, ends = prompts(a.n), [tokenizer.token_to_id(t) for t in ("<|return|>", "<|call|>")]
    theirs = [greedy(model, tokenizer.encode(t).ids, a.tokens) for t in texts]
    for device in a.device:
        ours, equal, whole = ask(a.answer, a.model, device, texts, a.tokens), 0, 0
        for i, (tokens, rows) in enumerate(theirs):
            at = next((j for j in range(len(tokens)) if j >= len(ours[i]) or ours[i][j] != tokens[j]), None)
            ended = next((j for j, t in enumerate(tokens) if t in ends), len(tokens))
            equal, whole = equal + (at is None), whole + (at is None or at > ended)
            if at is not None and at < len(ours[i]):
                margin = float(rows[at][tokens[at]] - rows[at][ours[i][at]])
                print(
                    f"{device}, prompt {i}: token {at}{' (past the end)' if at > ended else ''} is {tokenizer.decode([ours[i][at]], False)!r} and not {tokenizer.decode([tokens[at]], False)!r}, which leads by {margin:.4f}"
                )
            elif at is not None:
                print(f"{device}, prompt {i}: ended after {len(ours[i])} tokens")
        print(
            f"{device}: {equal} of {len(texts)} outputs of {a.tokens} tokens equal transformers', {whole} as far as the answer goes",
            flush=True,
        )


if __name__ == "__main__":
    main()
