"""What a family of the corpus makes, and the split into training and held-out problems."""

import zlib
from dataclasses import dataclass, field

EFFORTS = ("low", "medium", "high")


@dataclass
class Task:
    """One problem: what the user asks and what a good assistant thinks and says.

    key names the problem itself, however it is phrased: the split is by its hash. expect is what a checker
    looks for: a number, a list of numbers or words, a text, a JSON value; None where only the form counts.
    """

    family: str
    key: str
    user: str
    answer: str
    medium: str = ""  # the analysis at medium and high effort; low effort answers at once
    high: str = ""
    kind: str = "text"  # number, list, text, exact, json, call, free
    expect: object = None
    hard: bool = False
    instructions: str = ""
    tools: list = field(default_factory=list)
    call: tuple = None  # (name, arguments): the assistant calls before it answers
    result: str = ""
    after: str = ""  # the analysis after the result
    schema: dict = None
    turns: list = field(default_factory=list)  # (user, answer) of earlier turns

    def thought(self, effort):
        return {"low": "", "medium": self.medium, "high": self.high or self.medium}[effort]


def is_held_out(key):
    """One problem in ten."""
    return zlib.crc32(key.encode()) % 10 == 0
