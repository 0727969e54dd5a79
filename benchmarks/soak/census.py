"""Memory, descriptors and threads of processes, count after count, and whether they grow."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.report import MIB

HELD = ("rss_mib", "fds", "threads")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One process at one time.

    Attributes:
        at_s: seconds since the first count.
        name: Ray's processes call themselves by their current work.
        began: when the process did, seconds since 1970.
        age_s: seconds since then.
        done: work of the soak that was done by then.
    """

    at_s: float
    name: str
    pid: int
    began: float
    age_s: float
    done: int
    rss_mib: float
    fds: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How much growth of a process is a leak.

    Attributes:
        more: growth over the whole time in which it was counted, by name of the figure.
        more_an_hour: growth an hour, added to `more`.
        more_each: growth for each piece of work that was done meanwhile, added as well.
        warm_s: younger processes still fill caches and are not judged.
        settled: share of the time at the beginning that is not judged.
        counts: a process with fewer counts is not judged.
        least_s: nor is one that was counted for a shorter time,
        least_share: or for a smaller share of the time.
        share_an_hour: growth an hour of all processes together, of their sum, if that is more.
    """

    more: Mapping[str, float] = field(default_factory=dict)
    more_an_hour: Mapping[str, float] = field(default_factory=dict)
    more_each: Mapping[str, float] = field(default_factory=dict)
    warm_s: float = 0.0
    settled: float = 0.0
    counts: int = 4
    least_s: float = 0.0
    least_share: float = 0.0
    share_an_hour: float | None = None


class Census:
    """Counts processes, and the sizes of folders.

    Args:
        processes: the processes to count, name by pid.
        rules: of the verdict.
        folders: whose size on disk is counted, by name.

    Attributes:
        holdings: of all processes, in order of time.
        totals: of all processes together, a row for each count.
    """

    def __init__(
        self,
        processes: Callable[[], Mapping[int, str]],
        rules: Rules,
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        self._processes, self._rules, self._folders = processes, rules, folders or {}
        self._began = time.monotonic()
        self.holdings: list[Holding] = []
        self.totals: list[dict[str, float]] = []

    def take(self, done: int = 0) -> list[int]:
        """Count now, when so much work is done; the pids that were counted."""
        at_s, now = time.monotonic() - self._began, []
        for pid, name in self._processes().items():
            with suppress(psutil.Error, OSError):  # it ended meanwhile
                now.append(_holding(psutil.Process(pid), name=name, at_s=at_s, done=done))
        total: dict[str, float] = {"minute": round(at_s / 60, 2), "processes": len(now)}
        total |= {what: sum(getattr(one, what) for one in now) for what in HELD}
        total |= {f"disk_mib {name}": _disk_mib(path) for name, path in self._folders.items()}
        self.holdings += now
        self.totals.append({what: round(figure, 1) for what, figure in total.items()})
        return [one.pid for one in now]

    def growth(self) -> list[dict[str, Any]]:
        """Of each process with enough counts: how much more it holds per hour."""
        by_process: dict[tuple[int, float], list[Holding]] = defaultdict(list)
        for one in self.holdings:
            settled = one.at_s >= self._rules.settled * self._last_s
            if one.age_s >= self._rules.warm_s and settled:
                by_process[one.pid, one.began].append(one)
        return [
            {
                "name": own[-1].name,
                "pid": own[-1].pid,
                "minutes": round((own[-1].at_s - own[0].at_s) / 60, 2),
                "done": own[-1].done - own[0].done,
                "from_to_mib": [round(own[0].rss_mib, 1), round(own[-1].rss_mib, 1)],
            }
            | {
                what: round(per_hour((one.at_s, getattr(one, what)) for one in own), 2)
                for what in HELD
            }
            for own in by_process.values()
            if len(own) >= self._rules.counts
        ]

    @property
    def _last_s(self) -> float:
        return self.holdings[-1].at_s if self.holdings else 0.0

    def problems(self) -> list[str]:
        """Growth of processes that were counted for long enough to tell its slope from noise."""
        rules = self._rules
        least_s = max(rules.least_s, rules.least_share * self._last_s)
        judged = [row for row in self.growth() if 60 * row["minutes"] >= least_s]
        if not judged and least_s:
            return [f"no process was counted for {least_s / 60:.0f} minutes: growth is not judged"]
        found = [
            f"{row['name']} (pid {row['pid']}): {what} grows by {row[what]:g} an hour"
            for row in judged
            for what in HELD
            if row[what] * row["minutes"] / 60
            > self._allowed(what, row["minutes"] / 60, row["done"])
        ]
        settled = [one for one in self.totals if 60 * one["minute"] >= rules.warm_s]
        if rules.share_an_hour is None or len(settled) < rules.counts:
            return found
        if 60 * (settled[-1]["minute"] - settled[0]["minute"]) < least_s:
            return found
        for what in settled[0].keys() - {"minute", "processes"}:
            slope = per_hour((60 * one["minute"], one[what]) for one in settled)
            shared = 0.0 if what.startswith("disk") else rules.share_an_hour * settled[0][what]
            if slope > max(self._allowed(what.split()[0], 1.0), shared):
                found.append(f"all together: {what} grows by {slope:.1f} an hour")
        return found

    def _allowed(self, what: str, hours: float, done: int = 0) -> float:
        """Growth in so many hours, and by so much work, that is no leak."""
        more, an_hour, each = self._rules.more, self._rules.more_an_hour, self._rules.more_each
        if what not in more.keys() | an_hour.keys() | each.keys():
            return float("inf")
        return more.get(what, 0.0) + an_hour.get(what, 0.0) * hours + each.get(what, 0.0) * done


def per_hour(points: Iterable[tuple[float, float]]) -> float:
    """Slope of a line through the points (seconds, figure), by the median of the slopes of all
    pairs (Theil and Sen): a process that is away for a minute does not bend it."""
    slopes = [
        (after - before) / (late - early)
        for (early, before), (late, after) in combinations(points, 2)
        if late > early
    ]
    return 3600 * median(slopes) if slopes else 0.0


def _holding(process: psutil.Process, *, name: str, at_s: float, done: int) -> Holding:
    with process.oneshot():
        began = process.create_time()
        return Holding(
            at_s=at_s,
            name=name,
            pid=process.pid,
            began=began,
            age_s=time.time() - began,
            done=done,
            rss_mib=process.memory_info().rss / MIB,
            fds=process.num_fds(),
            threads=process.num_threads(),
        )


def _disk_mib(folder: Path) -> float:
    """Size of the files below a folder; those that go meanwhile are left out."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_blocks * 512
    return size / MIB
