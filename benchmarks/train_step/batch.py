"""The model and the batch that every way of `benchmarks.train_step` gets, and its talk with them.

Imported in the environments of the rivals too, so it needs torch, transformers and
tokenizers, and nothing of Millrace.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.models import make_model

VOCABULARY = 2048
GROUPS, GROUP_SIZE = 4, 8
LONGEST = 320
"""Tokens of an answer."""


@dataclass(frozen=True)
class Answer:
    """One prompt and one sampled answer to it, as token ids, and the answer's advantage."""

    prompt: list[int]
    response: list[int]
    reward: float


def make(folder: Path, *, experts: tuple[int, int] | None = None) -> None:
    """Write a random Qwen3, its tokenizer and a batch of uneven answers into a folder.

    Args:
        folder: to write into.
        experts: of each layer, a quarter as wide as the dense model's, and how many a token meets.
    """
    width = 96 if experts else 384
    make_model(folder, (128, width, 4, 4, 2, 32), vocabulary=VOCABULARY, experts=experts)
    (folder / "batch.json").write_text(json.dumps([asdict(a) for a in _batch()]))


def read(folder: Path) -> list[Answer]:
    """The batch, group after group."""
    return [Answer(**one) for one in json.loads((folder / "batch.json").read_text())]


def _batch() -> list[Answer]:
    """Lengths as in RL: most answers short, a few at the limit."""
    draw = random.Random(0)
    answers = []
    for _ in range(GROUPS):
        prompt = _tokens(draw, draw.randint(16, 64))
        for _ in range(GROUP_SIZE):
            length = min(LONGEST, max(8, int(draw.lognormvariate(4.2, 0.8))))
            answers.append(Answer(prompt, _tokens(draw, length), draw.random()))
    return answers


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(2, VOCABULARY) for _ in range(count)]


class Watch:
    """Wall and CPU seconds since it was made; CPU of this process, all threads."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """The seconds so far."""
        return {
            "wall": time.perf_counter() - self._wall,
            "cpu": time.process_time() - self._cpu,
        }


def tell(found: Any) -> None:
    """Answer with a line of JSON."""
    print(json.dumps({"found": found}), flush=True)


def answer_calls(ways: dict[str, Callable[[], Any]]) -> None:
    """Do what is asked on stdin, a way a line, and tell what it found."""
    tell("ready")
    for line in sys.stdin:
        tell(ways[line.strip()]())
