"""What every process holds, minute for minute, and whether it grows."""

import asyncio
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.soak.process_holdings import Holding, holding_of, of_each
from millrace_tools.cluster.leftovers import descendants
from tests.chaos.scene import Scene

WARM_S = 90.0
"""Younger processes still fill caches and are not compared."""

LEAST = 6
"""Counts without which a process is not compared."""

TOLERANCES = {"rss_mib": (24.0, 0.0), "fds": (8.0, 0.0), "threads": (8.0, 0.0)}
"""How much more, and which share more, a process may hold late than early."""

GRACE_S = 10.0
MORE_PROCESSES = 0
SEGMENTS = Path("/dev/shm")


class Census:
    """Counted whenever everything is whole, so that counts can be compared.

    Attributes:
        holdings: of all processes, in order of time.
        processes: how many there were at each census.
        forgotten: segments of shared memory that outlived all processes that mapped them.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._began = time.monotonic()
        self.holdings: list[Holding] = []
        self.processes: list[int] = []
        self.forgotten: set[str] = set()
        self._segments: set[str] = set()
        self._helpers: set[int] = set()  # the server that everything is forked from

    def take(self) -> None:
        """Count now."""
        names = self._names()
        if not self.processes:
            self._helpers = {pid for pid, name in names.items() if name == "helper"}
        mapped: set[str] = set()
        for pid, name in names.items():
            try:
                at_s = time.monotonic() - self._began
                self.holdings.append(holding_of(psutil.Process(pid), name=name, at_s=at_s))
                mapped |= _segments_of(pid)
            except (psutil.Error, OSError):
                continue  # it ended meanwhile
        self.processes.append(len(names))
        self._segments |= mapped
        self.forgotten = {one for one in self._segments - mapped if Path(one).exists()}

    async def left(self) -> list[int]:
        """Processes that outlive the scene, which is closed by now."""
        deadline = time.monotonic() + GRACE_S
        while left := set(descendants(os.getpid())) - self._helpers:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        return sorted(left)

    def growth(self) -> list[dict[str, Any]]:
        """Early and late means of each process that lived long enough, and what is too much."""
        rows = []
        for holdings in of_each(self.holdings, older_s=WARM_S, least=LEAST):
            early, late = holdings[: len(holdings) // 3], holdings[-(len(holdings) // 3) :]
            row: dict[str, Any] = {
                "name": holdings[-1].name,
                "pid": holdings[-1].pid,
                "minutes": (holdings[-1].at_s - holdings[0].at_s) / 60,
                "grown": [],
            }
            for what, (more, share) in TOLERANCES.items():
                before, after = _mean(early, what), _mean(late, what)
                row[what] = [round(before, 1), round(after, 1)]
                if after > before * (1 + share) + more:
                    row["grown"].append(what)
            rows.append(row)
        return rows

    def problems(self) -> list[str]:
        """What leaks."""
        found = [
            f"leak: {row['name']}: {what} {row[what][0]:g} -> {row[what][1]:g}"
            for row in self.growth()
            for what in row["grown"]
        ]
        third = max(1, len(self.processes) // 3)
        early, late = max(self.processes[:third]), min(self.processes[-third:])
        if late > early + MORE_PROCESSES:
            found.append(f"leak: {early} processes when whole -> {late}")
        if self.forgotten:
            found.append(f"leak: shared memory that nobody maps: {sorted(self.forgotten)}")
        return found

    def series(self) -> dict[str, list[list[float]]]:
        """Of each process, once a minute: minute, RSS in MiB, file descriptors, threads."""
        rows: dict[str, dict[int, list[float]]] = defaultdict(dict)
        for one in self.holdings:
            minute = int(one.at_s / 60)
            row: list[float] = [minute, round(one.rss_mib, 1), one.fds, one.threads]
            rows[f"{one.name}, pid {one.pid}"].setdefault(minute, row)
        return {name: list(by_minute.values()) for name, by_minute in rows.items()}

    def _names(self) -> dict[int, str]:
        names = {os.getpid(): "driver", **dict.fromkeys(descendants(os.getpid()), "helper")}
        for pid, name in self._scene.processes().items():
            if pid in names:
                names[pid] = name
            if name.startswith("replica"):
                names |= dict.fromkeys(descendants(pid), name.replace("replica", "engine"))
        return names


def _segments_of(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    prefix = f"{SEGMENTS}/"
    return {
        line[line.index(prefix) :]
        for line in lines
        if prefix in line and not line.endswith("(deleted)")
    }


def _mean(holdings: list[Holding], what: str) -> float:
    return statistics.mean(getattr(holding, what) for holding in holdings)
