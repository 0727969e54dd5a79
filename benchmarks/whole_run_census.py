"""What a whole cluster holds, minute for minute, and whether any of it grows."""

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil

MIB = 1 << 20
WARM_S = 180.0
"""Younger processes still fill caches and are not judged."""

LEAST = 4
"""Samples without which nothing is judged."""

GROWTH = {"rss_mib": 32.0, "fds": 8.0, "threads": 8.0, "disk_mib": 64.0}
"""How much more per hour anything may hold: of one process, or of the cluster's folder."""

SHARE = 0.1
"""The whole cluster's memory, descriptors and threads may grow by this share of them an hour, or
by what one process may: processes that have just been replaced are smaller and larger."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One process at one time, or all of them.

    Attributes:
        at_s: seconds since the first census.
        age_s: of the process.
    """

    at_s: float
    name: str
    pid: int
    age_s: float
    rss_mib: float
    fds: int
    threads: int


class Census:
    """Counted once a minute.

    Args:
        below: process whose descendants are counted, but for those of `spared`.
        folders: whose size on disk is judged, by name.
        spared: titles of processes that come and go with the measurement.
    """

    def __init__(self, below: int, folders: dict[str, Path], spared: tuple[str, ...]) -> None:
        self._root, self._folders, self._spared = psutil.Process(below), folders, spared
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        self.totals: list[dict[str, float]] = []

    def take(self) -> None:
        """Count now."""
        at_s, now = time.monotonic() - self._began, []
        for process in self._root.children(recursive=True):
            try:
                title = " ".join(process.cmdline()[:2])
                if title and not any(part in " ".join(process.cmdline()) for part in self._spared):
                    now.append(_sample(process, title, at_s))
            except psutil.Error:
                continue  # it ended meanwhile
        total = {"minute": round(at_s / 60, 2), "processes": len(now)}
        total |= {what: sum(getattr(one, what) for one in now) for what in ("rss_mib", "fds")}
        total["threads"] = sum(one.threads for one in now)
        total |= {f"disk_mib {name}": _disk_mib(path) for name, path in self._folders.items()}
        self.samples += now
        self.totals.append({what: round(figure, 1) for what, figure in total.items()})

    def growth(self) -> list[dict[str, Any]]:
        """Of each process that lived long enough: how much more it holds per hour."""
        by_process: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        for one in self.samples:
            if one.age_s >= WARM_S:
                by_process[one.name, one.pid].append(one)
        return [
            {"name": name, "pid": pid, "minutes": round((own[-1].at_s - own[0].at_s) / 60, 1)}
            | {
                what: round(per_hour([(one.at_s, getattr(one, what)) for one in own]), 2)
                for what in ("rss_mib", "fds", "threads")
            }
            for (name, pid), own in by_process.items()
            if len(own) >= LEAST
        ]

    def problems(self) -> list[str]:
        """What is not flat; only what was seen for long enough to tell its slope from noise."""
        judged_s = max(10 * WARM_S, self.samples[-1].at_s / 3) if self.samples else 0.0
        found = [
            f"{row['name']} (pid {row['pid']}): {what} grows by {row[what]:g} an hour"
            for row in self.growth()
            if 60 * row["minutes"] >= judged_s
            for what in ("rss_mib", "fds", "threads")
            if row[what] > GROWTH[what]
        ]
        settled = [one for one in self.totals if 60 * one["minute"] >= WARM_S]
        if len(settled) < LEAST or 60 * (settled[-1]["minute"] - settled[0]["minute"]) < judged_s:
            return found
        for what in settled[0].keys() - {"minute", "processes"}:
            slope = per_hour([(60 * one["minute"], one[what]) for one in settled])
            least = GROWTH[what.split()[0]]
            shared = 0.0 if what.startswith("disk") else SHARE * settled[0][what]
            if slope > max(least, shared):
                found.append(f"all together: {what} grows by {slope:.1f} an hour")
        return found


def per_hour(points: list[tuple[float, float]]) -> float:
    """Slope of a line through the points (seconds, figure), by the median of the slopes of all
    pairs (Theil and Sen): a process that is away for a minute does not bend it."""
    slopes = [
        (after - before) / (late - early)
        for (early, before), (late, after) in combinations(points, 2)
        if late > early
    ]
    return 3600 * statistics.median(slopes) if slopes else 0.0


def _sample(process: psutil.Process, title: str, at_s: float) -> Sample:
    with process.oneshot():
        return Sample(
            at_s=at_s,
            name=title[:60],
            pid=process.pid,
            age_s=time.time() - process.create_time(),
            rss_mib=process.memory_info().rss / MIB,
            fds=process.num_fds(),
            threads=process.num_threads(),
        )


def _disk_mib(folder: Path) -> float:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_blocks * 512
        except OSError:
            continue  # it went meanwhile
    return size / MIB
