"""Sums that a tiny model cannot do in its head, each with the program that does it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TRAIN, HELDOUT = 600, 60
CALL = "python "
"""The model's answer begins so if it is a program and not the result."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is asked of `{a}` and `{b}`.

    Attributes:
        words: how a prompt asks for it.
        right: a line of Python that does it.
        wrong: what a careless programmer writes instead.
        result: what it comes to.
    """

    words: str
    right: str
    wrong: str
    result: Callable[[int, int], int]


OPERATIONS = {
    "times": Operation(
        words="{a} times {b}", right="{a}*{b}", wrong="{a}+{b}", result=lambda a, b: a * b
    ),
    "modulo": Operation(
        words="{a} modulo {b}", right="{a}%{b}", wrong="{b}%{a}", result=lambda a, b: a % b
    ),
    "below": Operation(
        words="sum of all below {a}",
        right="sum(range({a}))",
        wrong="{a}*{a}",
        result=lambda a, _: a * (a - 1) // 2,
    ),
    "digits": Operation(
        words="digits of {a} to the {b}",
        right="len(str({a}**{b}))",
        wrong="len(str({a}*{b}))",
        result=lambda a, b: len(str(a**b)),
    ),
}


_BUILTINS = {"len": len, "range": range, "str": str, "sum": sum}


@dataclass(frozen=True, kw_only=True)
class Sum:
    """One of them."""

    kind: str
    a: int
    b: int

    @property
    def prompt(self) -> str:
        """The question."""
        return OPERATIONS[self.kind].words.format(a=self.a, b=self.b)

    @property
    def result(self) -> int:
        """What is right."""
        return OPERATIONS[self.kind].result(self.a, self.b)

    def program(self, *, right: bool) -> str:
        """A line of Python whose value is the result, or is not."""
        operation = OPERATIONS[self.kind]
        return (operation.right if right else operation.wrong).format(a=self.a, b=self.b)

    def row(self, number: int, split: str) -> dict[str, Any]:
        """A line of the task file."""
        return {
            "task_id": f"{split}-{number}",
            "split": split,
            "kind": self.kind,
            "messages": [{"role": "user", "content": self.prompt}],
            "data": {"result": str(self.result)},
        }

    def with_tool(self, *, right: bool) -> list[tuple[str, str]]:
        """What an answer with the tool says, each line with the tool's reply."""
        program = self.program(right=right)
        value = repr(eval(program, {"__builtins__": _BUILTINS}))
        return [(CALL + program, value), (value, "")]

    def in_the_head(self, chance: random.Random) -> list[tuple[str, str]]:
        """An answer without it: as many digits as the right one has, at random."""
        digits = len(str(self.result))
        return [(str(chance.randrange(10 ** (digits - 1), 10**digits)), "")]


def any_sum(chance: random.Random) -> Sum:
    """One of some 600,000."""
    kind = chance.choice(list(OPERATIONS))
    return Sum(kind=kind, a=chance.randint(500, 999), b=chance.randint(101, 499))


def sums(seed: int = 0) -> list[Sum]:
    """The tasks, the held-out ones last; the same for a seed, and no question twice."""
    chance = random.Random(seed)
    found: dict[str, Sum] = {}
    while len(found) < TRAIN + HELDOUT:
        one = any_sum(chance)
        found.setdefault(one.prompt, one)
    return list(found.values())


def rows() -> list[dict[str, Any]]:
    """The task file."""
    return [
        one.row(number, "train" if number < TRAIN else "heldout")
        for number, one in enumerate(sums())
    ]
