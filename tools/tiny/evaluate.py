#!/usr/bin/env python3
"""Held-out accuracy and perplexity of models/tiny, measured through the moesaic binary (greedy).

evaluate.py MODEL --answer BINARY [-n PER_FAMILY] [--effort low|medium|high ...] [--only FAMILY] [--show-wrong]
evaluate.py MODEL --moesaic BINARY --perplexity          one table: what each format costs
"""

import argparse
import json
import math
import pathlib
import random
import re
import subprocess
import tempfile

import corpus
from task import EFFORTS

FAMILIES = {}  # name: makers
for _, maker in corpus.FAMILIES:
    FAMILIES.setdefault(maker(random.Random(1)).family, []).append(maker)


def fits(value, schema):
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    if not isinstance(value, dict) or set(value) != set(schema["required"]):
        return False
    return all(
        isinstance(value[k], kinds[p["type"]]) and (p["type"] == "boolean" or not isinstance(value[k], bool))
        for k, p in schema["properties"].items()
    )


def parse(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def right(task, reply):
    text = reply["text"].strip()
    if task.kind == "call":
        call = reply["call"]
        return bool(call) and call[0] == task.expect["name"] and parse(call[1]) == task.expect["arguments"]
    if task.kind == "json":
        return parse(text) == task.expect and (not task.schema or fits(parse(text), task.schema))
    if task.kind == "number":
        numbers = re.findall(r"-?\d+", text.split("=")[-1])
        if task.family == "comparing" or "letter" in task.family:
            numbers = numbers[:1] if task.family == "comparing" else numbers[-1:]
        return [str(task.expect)] == numbers[:1]
    if task.kind in ("list", "exact"):
        return text == str(task.expect)
    if task.kind == "text":
        return re.search(r"(?<!\w)" + re.escape(str(task.expect)) + r"(?!\w)", text) is not None
    return bool(text)


def read_reply(text):
    """What a model said after <|start|>assistant, with the special tokens as text."""
    final = re.findall(r"<\|channel\|>final<\|message\|>(.*?)(?:<\|return\|>|$)", text, re.S)
    call = re.search(r"to=functions\.(\w+)[^<]*(?:<\|constrain\|>json|)<\|message\|>(.*?)<\|call\|>", text, re.S)
    thought = re.findall(r"<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|$)", text, re.S)
    return {
        "text": final[-1] if final else "",
        "call": call.groups() if call else None,
        "thought": "".join(thought),
        "ended": text.endswith(("<|return|>", "<|call|>")),
    }


def ask(a, prompts):
    """The replies to many prompts; answer.cc's program."""
    lines = "".join(json.dumps({"prompt": p, "max_tokens": 700}) + "\n" for p in prompts)
    command = [a.answer, a.model, str(a.threads), a.device, a.moe_path]
    out = subprocess.run(command, input=lines, capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(f"{a.answer}: {out.stderr}")
    replies = [None] * len(prompts)
    for line in out.stdout.splitlines():
        got = json.loads(line)
        replies[got["index"]] = got
    return replies


def problems(makers, effort, count, seed):
    """count different held-out problems of a family: (task, prompt)."""
    rng, seen, out = random.Random(seed), set(), []
    while len(out) < count:
        task, _, segments = corpus.conversation(rng, True, rng.choice(makers), effort)
        if (task.key, task.user) in seen and rng.random() < 0.98:
            continue
        seen.add((task.key, task.user))
        out.append((task, "".join(text for text, _ in segments[:2])))
    return out


def accuracy(a):
    rows, ended, total, all_good, seed = [], 0, 0, 0, 11
    for family, makers in sorted(FAMILIES.items()):
        if a.only and family not in a.only:
            continue
        cells = []
        for effort in a.effort:
            drawn = problems(makers, effort, a.n, f"{seed} {family} {effort}")
            replies = ask(a, [p for _, p in drawn])
            good, length = 0, 0
            for (task, prompt), got in zip(drawn, replies):
                reply = read_reply(got["text"])
                called = task.call and "<|call|>" not in prompt
                fine = right(task, reply) if called or task.kind != "call" else bool(reply["text"])
                good, ended, total = good + fine, ended + reply["ended"], total + 1
                length += len(got["tokens"])
                all_good += fine
                if a.show_wrong and not fine:
                    print(
                        f"--- {family}/{effort}: {task.user!r}\n  said {got['text']!r}\n  expected {task.answer!r} {task.thought(effort)!r}"
                    )
            cells.append((good / len(drawn), length / len(drawn)))
        rows.append((family, cells))
        print(
            f"{family:18} " + "  ".join(f"{e} {c:6.1%} ({n:.0f} tokens)" for e, (c, n) in zip(a.effort, cells)),
            flush=True,
        )
    mean = all_good / total
    print(f"all {mean:.1%}, standard error {math.sqrt(mean * (1 - mean) / total):.1%}, of {total} problems")
    print(f"ended properly: {ended} of {total}")
    return rows


def held_out_text(folder):
    """Two texts: conversations with their special tokens, and plain documents."""
    import stories

    rng = random.Random(99)
    chats = "".join(
        "".join(t for t, _ in corpus.conversation(rng, True)[2][1:]) for _ in range(250)
    )  # not the system message, which nothing trains
    plain = "\n\n".join(stories.document(rng) for _ in range(250))
    paths = []
    for name, text in (("chats", chats), ("plain", plain)):
        paths.append(pathlib.Path(folder) / f"{name}.txt")
        paths[-1].write_text(text)
    return paths


def perplexity(a):
    with tempfile.TemporaryDirectory() as folder:
        for path in held_out_text(folder):
            for dense in ("bf16", "q8_0", "mxfp8"):
                out = subprocess.run(
                    [
                        a.moesaic,
                        "perplexity",
                        "-m",
                        a.model,
                        "-f",
                        path,
                        "--special",
                        "--ctx",
                        "1024",
                        "--device",
                        a.device,
                        "--moe-path",
                        a.moe_path,
                        "-t",
                        str(a.threads),
                        "--dense",
                        dense,
                        "-o",
                        "json",
                    ],
                    capture_output=True,
                    text=True,
                )
                print(path.stem, dense, out.stdout.strip() or out.stderr.strip(), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("model")
    p.add_argument(
        "--answer", default="answer", help="the program of answer.cc, tests/tiny/tiny_answer of a build folder"
    )
    p.add_argument("--moesaic", default="moesaic")
    p.add_argument("--device", default="auto")
    p.add_argument("--moe-path", default="auto", choices=["auto", "w4a8", "w4a8x2"])
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("-n", type=int, default=100)
    p.add_argument("--effort", nargs="+", choices=EFFORTS, default=list(EFFORTS))
    p.add_argument("--only", nargs="+")
    p.add_argument("--show-wrong", action="store_true")
    p.add_argument("--perplexity", action="store_true")
    a = p.parse_args()
    perplexity(a) if a.perplexity else accuracy(a)


if __name__ == "__main__":
    main()
