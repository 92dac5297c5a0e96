#!/usr/bin/env python3
"""The training text of models/tiny: harmony conversations over a closed world, deterministic by seed.

    corpus.py [--split train|held-out] [--seed N] [-n SAMPLES]      prints samples as text

Problems are split by the hash of what is asked (task.is_held_out), not by its wording. The messages are
written exactly as `moesaic render` prints them.
"""

import argparse
import json
import random

import stories
import talk
import tasks_data
import tasks_dates
import tasks_numbers
import tasks_text
import tasks_tools
from task import EFFORTS, is_held_out

FAMILIES = [  # (weight, maker)
    (12, tasks_numbers.arithmetic),
    (7, tasks_numbers.long_arithmetic),
    (4, tasks_numbers.division),
    (5, tasks_numbers.expression),
    (4, tasks_numbers.word_problem),
    (3, tasks_numbers.compare),
    (8, tasks_numbers.sort_numbers),
    (2, tasks_numbers.extreme),
    (1, tasks_numbers.count_range),
    (1, tasks_numbers.parity),
    (3, tasks_numbers.spell),
    (1, tasks_dates.next_day),
    (1, tasks_dates.iso_date),
    (2, tasks_dates.weekday),
    (1, tasks_dates.leap_year),
    (1, tasks_dates.month_days),
    (2, tasks_dates.age),
    (9, tasks_text.count_letter),
    (3, tasks_text.word_length),
    (2, tasks_text.vowels),
    (9, tasks_text.reverse),
    (4, tasks_text.join_letters),
    (4, tasks_text.spell_word),
    (1, tasks_text.letter_at),
    (1, tasks_text.upper),
    (4, tasks_text.sort_words),
    (1, tasks_text.odd_one),
    (1, tasks_text.kind_of),
    (4, tasks_text.repeat_text),
    (3, tasks_text.code_book),
    (3, tasks_text.needle),
    (2, tasks_text.remember),
    (13, tasks_data.table),
    (12, tasks_data.paragraph),
    (8, tasks_data.json_schema),
    (3, tasks_data.json_keys),
    (2, tasks_data.json_read),
    (2, tasks_data.json_change),
    (1, tasks_data.json_list),
    (10, tasks_tools.tool_call),
    (2, tasks_tools.no_tool),
    (5, talk.about),
    (1, talk.liking),
    (2, talk.unknown),
    (2, talk.casual),
    (1, talk.greeting),
    (1, talk.today),
    (7, stories.tell_story),
]
WEIGHTS, MAKERS = zip(*FAMILIES)
EFFORT_WEIGHTS = (0.2, 0.45, 0.35)
PLAIN_SHARE = 0.06
PROMPT_WEIGHT = 0.1  # share in the loss of what the model reads but need not write
IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
STYLES = [
    "Answer briefly.",
    "You are a helpful assistant.",
    "Be kind and clear.",
    "You are tiny, a small model.",
    "Be brief.",
    "Answer in English.",
]


def draw(rng, maker, held_out):
    while True:
        task = maker(rng)
        if task.kind == "free" or is_held_out(task.key) == held_out:
            return task


def system(rng, effort, tools, date):
    text = (
        IDENTITY
        if rng.random() < 0.9
        else rng.choice(["You are tiny, a small language model.", "You are a helpful assistant."])
    )
    text += f"\nKnowledge cutoff: {rng.choice(['2024-06'] * 9 + ['2023-10'])}"
    if date:
        text += f"\nCurrent date: {date}"
    text += f"\n\nReasoning: {effort}\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
    if tools:
        text += "\nCalls to these tools must go to the commentary channel: 'functions'."
    return f"<|start|>system<|message|>{text}<|end|>"


def developer(instructions, tools):
    text = f"# Instructions\n\n{instructions}" if instructions else ""
    if tools:
        text += ("\n\n" if text else "") + "# Tools\n\n## functions\n\nnamespace functions {\n\n"
        text += "".join(tasks_tools.type_script(t) + "\n" for t in tools) + "} // namespace functions"
    return f"<|start|>developer<|message|>{text}<|end|>" if text else ""


def user(text):
    return f"<|start|>user<|message|>{text}<|end|>"


def said(channel, text, end="<|end|>"):
    return f"<|channel|>{channel}<|message|>{text}{end}"


def reply(thought, answer):
    """What follows <|start|>assistant: the analysis, if there is one, and the answer."""
    return (said("analysis", thought) + "<|start|>assistant" if thought else "") + said("final", answer, "<|return|>")


def call_of(task):
    name, arguments = task.call
    return name, json.dumps(arguments)


def turn(rng, task, effort):
    """(prompt, reply) pairs: one, or a call and what follows its result."""
    thought = task.thought(effort)
    ask = user(task.user) + "<|start|>assistant"
    if not task.call:
        return [(ask, reply(thought, task.answer))]
    name, arguments = call_of(task)
    before = said("analysis", thought) + "<|start|>assistant" if thought else ""
    called = before + f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    if rng.random() < 0.5:
        return [(ask, called)]
    # The history shows the call as it is rendered: the recipient stands before the channel.
    shown = before + f" to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>{arguments}<|call|>"
    result = (
        f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{task.result}<|end|><|start|>assistant"
    )
    return [(ask + shown + result, reply(task.after if effort == "high" else "", task.answer))]


def earlier_turns(rng, task, effort, held_out):
    turns = [user(q) + "<|start|>assistant" + said("final", a) for q, a in task.turns]
    while not task.turns and rng.random() < 0.25 and len(turns) < 3:
        past = draw(rng, rng.choices(MAKERS, WEIGHTS)[0], held_out)
        if past.tools or past.instructions or past.turns:
            continue
        # Rendered like openai-harmony: of the analysis of earlier turns, the first answer's is dropped.
        thought = past.thought(effort) if turns and rng.random() < 0.7 else ""
        turns.append(
            user(past.user)
            + "<|start|>assistant"
            + (said("analysis", thought) + "<|start|>assistant" if thought else "")
            + said("final", past.answer)
        )
    return "".join(turns)


def conversation(rng, held_out=False, maker=None, effort=None):
    """(task, effort, segments): segments are (text, loss weight), cut at special tokens."""
    task = draw(rng, maker or rng.choices(MAKERS, WEIGHTS)[0], held_out)
    effort = effort or rng.choices(EFFORTS, EFFORT_WEIGHTS)[0]
    date = task.expect if task.family == "today" else (str(tasks_dates.random_day(rng)) if rng.random() < 0.9 else "")
    instructions = task.instructions or (rng.choice(STYLES) if rng.random() < 0.12 else "")
    head = system(rng, effort, task.tools, date) + developer(instructions, task.tools)
    head += earlier_turns(rng, task, effort, held_out) if not task.tools and not task.instructions else ""
    prompt, answer = turn(rng, task, effort)[0]
    return task, effort, [(head, 0.0), (prompt, PROMPT_WEIGHT), (answer, 1.0)]


def sample(rng, held_out=False):
    """(family, segments)"""
    if rng.random() < PLAIN_SHARE:
        return "plain text", [(stories.document(rng) + "<|endoftext|>", 1.0)]
    task, _, segments = conversation(rng, held_out)
    return task.family, segments


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--split", choices=["train", "held-out"], default="train")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-n", type=int, default=10)
    a = p.parse_args()
    rng = random.Random(a.seed)
    for _ in range(a.n):
        family, segments = sample(rng, a.split == "held-out")
        print(f"---- {family}\n" + "".join(text for text, _ in segments))


if __name__ == "__main__":
    main()
