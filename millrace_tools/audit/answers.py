"""Answers of known worth: none that is here deserves a reward, except the references."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace_tools.audit.policy.scripted_policy import Refuse, Script
from services.protocol.run.task import Task

_WORDS = ("alpha", "seven", "of", "green", "maybe", "window", "12", "north", "river", "3.5")
_FIRST, _LAST = 8, 16


@dataclass(frozen=True)
class Candidate:
    """A way to answer.

    Attributes:
        name: for people.
        script: answers every call of an episode.
    """

    name: str
    script: Script


def always(said: str) -> Script:
    """The same answer to every call."""
    return lambda messages: said


def turns(said: str | Sequence[str]) -> Script:
    """An answer to each call of an episode in turn, the last of them again and again."""
    if isinstance(said, str):
        return always(said)

    def answer(messages: Sequence[dict[str, Any]]) -> str:
        before = sum(one.get("role") == "assistant" for one in messages)
        return said[min(before, len(said) - 1)] if said else ""

    return answer


def refusing() -> Script:
    """A server that has no answers."""

    def refuse(messages: Sequence[dict[str, Any]]) -> str:
        raise Refuse

    return refuse


def worthless(task: Task, seed: int) -> list[Candidate]:
    """What a model says that has not understood the task."""
    draw = random.Random(f"{seed}/{task.task_id}")
    noise = " ".join(draw.choice(_WORDS) for _ in range(12))
    return [
        Candidate("empty", always("")),
        Candidate("space", always(" \n")),
        Candidate("random words", always(noise)),
        Candidate("refusal", always("I'm sorry, but I can't help with that.")),
        Candidate("repeats what it was told", last_said),
    ]


def words_of(task: Task) -> dict[str, str]:
    """Words of the task as the model sees it, by their place."""
    said = " ".join(str(message["content"]) for message in task.chat)
    words = [word.strip("`'\".,:;!?()[]") for word in said.split()]
    first = {f"word {n}": word for n, word in enumerate(words[:_FIRST], 1)}
    last = {f"word {n} from the end": word for n, word in enumerate(words[: -_LAST - 1 : -1], 1)}
    return first | last


def last_said(messages: Sequence[dict[str, Any]]) -> str:
    """What the policy was told last."""
    said = [str(one.get("content") or "") for one in messages if one.get("role") == "user"]
    return said[-1] if said else ""
