"""What a whole cluster holds, minute for minute, and whether any of it grows."""

import os
import statistics
import time
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil

from benchmarks.soak.process_holdings import HELD, MIB, Holding, holding_of, of_each

WARM_S = 180.0
"""Younger processes still fill caches and are not judged."""

LEAST = 4
"""Counts without which nothing is judged."""

GROWTH = {"rss_mib": 32.0, "fds": 8.0, "threads": 8.0, "disk_mib": 64.0}
"""How much more per hour anything may hold: of one process, or of the cluster's folder."""

SHARE = 0.1
"""The whole cluster's memory, descriptors and threads may grow by this share of them an hour, or
by what one process may: processes that have just been replaced are smaller and larger."""


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
        self.holdings: list[Holding] = []
        self.totals: list[dict[str, float]] = []

    def take(self) -> None:
        """Count now."""
        at_s, now = time.monotonic() - self._began, []
        for process in self._root.children(recursive=True):
            try:
                words = process.cmdline()
                if words and not any(part in " ".join(words) for part in self._spared):
                    now.append(holding_of(process, name=_name(words), at_s=at_s))
            except psutil.Error:
                continue  # it ended meanwhile
        total = {"minute": round(at_s / 60, 2), "processes": len(now)}
        total |= {what: sum(getattr(one, what) for one in now) for what in HELD}
        total |= {f"disk_mib {name}": _disk_mib(path) for name, path in self._folders.items()}
        self.holdings += now
        self.totals.append({what: round(figure, 1) for what, figure in total.items()})

    def growth(self) -> list[dict[str, Any]]:
        """Of each process that lived long enough: how much more it holds per hour."""
        return [
            {
                "name": own[-1].name,
                "pid": own[-1].pid,
                "minutes": round((own[-1].at_s - own[0].at_s) / 60, 1),
            }
            | {
                what: round(per_hour([(one.at_s, getattr(one, what)) for one in own]), 2)
                for what in HELD
            }
            for own in of_each(self.holdings, older_s=WARM_S, least=LEAST)
        ]

    def problems(self) -> list[str]:
        """What is not flat; only what was seen for long enough to tell its slope from noise."""
        judged_s = max(10 * WARM_S, self.holdings[-1].at_s / 3) if self.holdings else 0.0
        judged = [row for row in self.growth() if 60 * row["minutes"] >= judged_s]
        if not judged:
            return [f"no process was counted for {judged_s / 60:.0f} minutes: growth is not judged"]
        found = [
            f"{row['name']} (pid {row['pid']}): {what} grows by {row[what]:g} an hour"
            for row in judged
            for what in HELD
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


def _name(words: list[str]) -> str:
    """Ray's title of a process, or its program and, of an interpreter, its script."""
    if words[0].startswith("ray::"):
        return words[0].strip()
    script = next((Path(word).name for word in words[1:] if word.endswith(".py")), "")
    return f"{Path(words[0]).name} {script}".strip()


def _disk_mib(folder: Path) -> float:
    """What the files below a folder take; those that go meanwhile are left out."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_blocks * 512
    return size / MIB
