"""The tasks: one line of Python asked for in words and graded by running it.

A task is two operations on `a`, `b`, `c` and small constants, such as "larger of a and 7,
times c". Any expression with the right value and type on the hidden calls is accepted.
"""

import random
from dataclasses import dataclass
from typing import Any

SPLIT_SEED = 0
HELDOUT_SHARE = 0.2
NUM_TESTS = 8
SHARE_RIGHT = 0.3
"""Of demonstrations; the others contain their operation's bug."""
VARIABLES = ("a", "b", "c")
CONSTANTS = ("2", "3", "5", "7")

TEMPLATE = "def f(a, b, c):\n    {completion}"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One way to combine `{x}` and `{y}`.

    Attributes:
        words: how a prompt asks for it.
        right: an expression that does it.
        wrong: what a careless programmer writes instead.
    """

    words: str
    right: str
    wrong: str


INNER = {
    "plus": Operation(words="{x} plus {y}", right="({x}+{y})", wrong="({x}-{y})"),
    "minus": Operation(words="{x} minus {y}", right="({x}-{y})", wrong="({y}-{x})"),
    "times": Operation(words="{x} times {y}", right="({x}*{y})", wrong="({x}+{y})"),
    "larger": Operation(words="larger of {x} and {y}", right="max({x},{y})", wrong="min({x},{y})"),
    "smaller": Operation(
        words="smaller of {x} and {y}", right="min({x},{y})", wrong="max({x},{y})"
    ),
    "modulo": Operation(words="{x} modulo {y}", right="({x}%{y})", wrong="({y}%{x})"),
}

OUTER = {"plus": "+", "minus": "-", "times": "*"}
"""The second operation: a word and its sign; always demonstrated rightly."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What one task asks for: `outer(inner(x, y), z)`."""

    inner: str
    x: str
    y: str
    outer: str
    z: str

    @property
    def task_id(self) -> str:
        """Unique and readable."""
        return f"{self.inner}-{self.x}-{self.y}-{self.outer}-{self.z}"

    @property
    def prompt(self) -> str:
        """The request in words."""
        words = INNER[self.inner].words.format(x=self.x, y=self.y)
        return f"{words}, {self.outer} {self.z}"

    def answer(self, *, right: bool) -> str:
        """A line of Python that is right, or has this operation's systematic bug."""
        operation = INNER[self.inner]
        pattern = operation.right if right else operation.wrong
        return f"return {pattern.format(x=self.x, y=self.y)}{OUTER[self.outer]}{self.z}"


def all_specs() -> list[Spec]:
    """Every task, in a fixed order."""
    operands = VARIABLES + CONSTANTS
    return [
        Spec(inner=inner, x=x, y=y, outer=outer, z=z)
        for inner in INNER
        for x in VARIABLES
        for y in operands
        if x != y
        for outer in OUTER
        for z in operands
    ]


def split_specs() -> tuple[list[Spec], list[Spec]]:
    """The tasks to learn from and the held-out fifth; the same for every seed."""
    specs = all_specs()
    random.Random(SPLIT_SEED).shuffle(specs)
    heldout = round(len(specs) * HELDOUT_SHARE)
    return specs[heldout:], specs[:heldout]


def task_row(spec: Spec, split: str) -> dict[str, Any]:
    """A line of the task file, as `services.protocol.run.task.Task` wants it."""
    return {
        "task_id": spec.task_id,
        "messages": [{"role": "user", "content": spec.prompt}],
        "split": split,
        "kind": spec.inner,
        "grader": {
            "kind": "python_function",
            "entry_point": "f",
            "template": TEMPLATE,
            "tests": _tests(spec),
            "limits": {"cpu_s": 1.0, "memory_mb": 256, "output_kb": 16},
        },
    }


def _tests(spec: Spec) -> list[dict[str, Any]]:
    """Calls with random arguments and what the right answer returns for them."""
    choose = random.Random(spec.task_id)
    expression = spec.answer(right=True).removeprefix("return ")
    code = compile(expression, spec.task_id, "eval")
    tests = []
    for _ in range(NUM_TESTS):
        args = {name: choose.randint(1, 30) for name in VARIABLES}
        expected = eval(code, {"__builtins__": {}, "max": max, "min": min}, args)
        tests.append({"args": list(args.values()), "expected": expected})
    return tests
