"""Rewards of candidates on the audited tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from millrace_tools.audit.answers import Candidate
from millrace_tools.audit.policy.scripted_policy import Script
from millrace_tools.audit.subject import Outcome, Subject
from services.protocol.run.task import Task

_SHOWN = 3
_FULL = 0.5
"""Share of the best reward at which an answer counts as paid."""


@dataclass(frozen=True)
class Played:
    """One candidate on all tasks.

    Attributes:
        name: of the candidate.
        tasks: in order.
        outcomes: of each task.
    """

    name: str
    tasks: Sequence[Task]
    outcomes: Sequence[Outcome]

    @property
    def rewards(self) -> list[float]:
        """Of the episodes that have one."""
        return [one.reward for one in self.outcomes if one.reward is not None]

    @property
    def mean(self) -> float:
        """Of the rewards; 0 without any."""
        return fmean(self.rewards) if self.rewards else 0.0

    def paid(self, best: float) -> list[str]:
        """Ids of the tasks that paid it well."""
        pairs = zip(self.tasks, self.outcomes, strict=True)
        return [task.task_id for task, one in pairs if is_paid(one, best)]


async def play_each(
    subject: Subject, tasks: Sequence[Task], candidates: Callable[[Task], Sequence[Candidate]]
) -> list[Played]:
    """Every candidate on every task; each task has the same candidates by name."""
    found: dict[str, tuple[list[Task], list[Script]]] = {}
    for task in tasks:
        for candidate in candidates(task):
            own, scripts = found.setdefault(candidate.name, ([], []))
            own.append(task)
            scripts.append(candidate.script)
    return [
        Played(name, own, await subject.play_all(own, scripts))
        for name, (own, scripts) in found.items()
    ]


def is_paid(outcome: Outcome, best: float) -> bool:
    """Whether an episode earned at least half of the best reward."""
    return outcome.reward is not None and outcome.reward >= _FULL * best


def unrewarded(played: Sequence[Played]) -> str | None:
    """Why nothing can be said: no episode has a reward. None if one has."""
    outcomes = [one for each in played for one in each.outcomes]
    if any(one.reward is not None for one in outcomes):
        return None
    return f"no episode has a reward, as in: {outcomes[0].reason}" if outcomes else "none is played"


def some(ids: Sequence[str]) -> str:
    """A few ids, for people."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
