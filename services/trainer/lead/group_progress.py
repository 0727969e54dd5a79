"""Deadlines on progress: which rank of a group hangs, from what ranks report of themselves."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from services.protocol.trainer import RankProgress
from services.trainer.config import TrainerConfig

_MISSED = 4
"""Questions without an answer after which a process counts as silent, where all are quiet."""


@dataclass(frozen=True)
class _Report:
    """What a rank said, and when."""

    progress: RankProgress
    at_s: float


class GroupProgress:
    """What the ranks at work do. The rule of docs/training.md, "Progress and hangs":

    - A rank whose process answers no question for `progress_timeout_s` hangs.
    - So does a rank that is quiet for as long while it reads its part of the model, for which it
      waits for no other.
    - Else a quiet rank may wait for one that works: the group hangs once all ranks at work have
      been quiet for as long, and it is the rank with the fewest marks that holds the others up.
    - While a process imports, which no model prolongs, `start_timeout_s` takes the place of
      `progress_timeout_s`.

    Args:
        config: the timeouts.
        clock: monotonic seconds.
    """

    def __init__(self, config: TrainerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._began_at = clock()
        self._reports: dict[int, _Report] = {}
        self.at_work: Collection[int] = ()

    @property
    def look_s(self) -> float:
        """Seconds between two questions to a rank."""
        return min(2.0, self._config.progress_timeout_s / 20)

    def begin(self, ranks: Collection[int], phase: str) -> None:
        """The ranks get work; none of them has been quiet yet."""
        self._began_at = now = self._clock()
        self.at_work = ranks
        self._reports = {one: _Report(RankProgress(phase=phase, rank=one), now) for one in ranks}

    def report(self, progress: RankProgress) -> None:
        """A rank has answered."""
        self._reports[progress.rank] = _Report(progress, self._clock())

    def end(self) -> None:
        """No rank has work."""
        self.at_work = ()

    @property
    def slowest(self) -> RankProgress | None:
        """The rank that has been quiet for longest, None if none has work."""
        return max((self._now(rank) for rank in self.at_work), key=_quiet, default=None)

    def hung(self) -> str | None:
        """Which rank hangs, in what and for how long; None while the group goes on."""
        ranks = [self._now(rank) for rank in self.at_work]
        overdue = [one for one in ranks if one.quiet_s > self._limit_s(one)]
        certain = [
            one
            for one in overdue
            if self._silent_s(one) > self._limit_s(one) or _waits_for_nobody(one)
        ]
        if not certain and len(overdue) < len(ranks):
            return None
        worst = min(certain or overdue, key=self._behind, default=None)
        if worst is None:
            return None
        silent = self._silent_s(worst) > _MISSED * self.look_s
        how = "its process does not answer" if silent else "it shows no progress"
        return f"rank {worst.rank} hangs in {worst}: {how} for {worst.quiet_s:.0f} s"

    def _behind(self, rank: RankProgress) -> tuple[bool, int, float]:
        """Orders ranks by how likely it is that the others wait for them."""
        answers = self._silent_s(rank) <= _MISSED * self.look_s
        return answers, rank.marks, -rank.quiet_s

    def _now(self, rank: int) -> RankProgress:
        report, now = self._reports[rank], self._clock()
        quiet = report.progress.quiet_s + now - report.at_s
        return replace(report.progress, quiet_s=min(quiet, now - self._began_at))

    def _silent_s(self, rank: RankProgress) -> float:
        return self._clock() - self._reports[rank.rank].at_s

    def _limit_s(self, rank: RankProgress) -> float:
        config = self._config
        return config.start_timeout_s if rank.phase == "starting" else config.progress_timeout_s


def _waits_for_nobody(rank: RankProgress) -> bool:
    return rank.phase == "loading" and rank.done < rank.total


def _quiet(rank: RankProgress) -> float:
    return rank.quiet_s
