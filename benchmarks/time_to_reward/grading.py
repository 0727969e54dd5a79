"""How TRL's side of `time_to_reward` grades: by the rule of our reward service, two ways.

`process`: each answer in a Python of its own, as many at a time as there are cores, which keeps
a crash, a hang or much memory away from the trainer, and no more than that. `inline`: in the
trainer's own process, as nobody should run programs of a model that they do not know; it is the
least that grading can cost.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.time_to_reward.answer import CPU_S, passes

ANSWER = Path(__file__).with_name("answer.py")


def rewards(completions: Sequence[Any], tests: Sequence[str], **_: Any) -> list[float]:
    """1 for an answer that is right, in value and type, on all hidden calls; graded inline."""
    return [float(passes(text, own)) for text, own in zip(_texts(completions), tests, strict=True)]


def rewards_of_processes(completions: Sequence[Any], tests: Sequence[str], **_: Any) -> list[float]:
    """The same, each answer in a process of its own."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(map(float, pool.map(_passes_elsewhere, _texts(completions), tests)))


GRADINGS: dict[str, Callable[..., list[float]]] = {
    "inline": rewards,
    "process": rewards_of_processes,
}


def _passes_elsewhere(completion: str, tests: str) -> bool:
    program = [sys.executable, "-I", "-S", str(ANSWER)]
    try:
        done = subprocess.run(
            program,
            input=json.dumps([completion, tests]),
            capture_output=True,
            text=True,
            timeout=10 * CPU_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.strip() == "passed"


def _texts(completions: Sequence[Any]) -> list[str]:
    return [one if isinstance(one, str) else one[0]["content"] for one in completions]
