"""The census of a scene of tests/chaos: its processes, and the shared memory that they map."""

import asyncio
import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from benchmarks.soak.census import Census, Rules
from millrace_tools.cluster.leftovers import descendants
from tests.chaos.scene import Scene

RULES = Rules(more={"rss_mib": 36.0, "fds": 12.0, "threads": 12.0}, warm_s=90.0, counts=6)
"""Two thirds of this is what the last third of the counts may hold more than the first."""

GRACE_S = 10.0
SEGMENTS = "/dev/shm/"


class SceneCensus(Census):
    """Counted whenever everything is whole, so that counts can be compared.

    Attributes:
        forgotten: segments of shared memory that outlived all processes that mapped them.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(self._names, RULES)
        self._scene = scene
        self.forgotten: set[str] = set()
        self._segments: set[str] = set()
        self._helpers: set[int] = set()  # the server that everything is forked from

    def take(self, done: int = 0) -> list[int]:
        """See `Census`."""
        if not self.totals:
            self._helpers = {pid for pid, name in self._names().items() if name == "helper"}
        pids, mapped = super().take(done), set()
        for pid in pids:
            with suppress(OSError):  # it ended meanwhile
                mapped |= _segments_of(pid)
        self._segments |= mapped
        self.forgotten = {one for one in self._segments - mapped if Path(one).exists()}
        return pids

    async def left(self) -> list[int]:
        """Processes that outlive the scene, which is closed by now."""
        deadline = time.monotonic() + GRACE_S
        while left := set(descendants(os.getpid())) - self._helpers:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        return sorted(left)

    def problems(self) -> list[str]:
        """See `Census`; besides, more processes than before, and forgotten shared memory."""
        found = super().problems()
        processes = [one["processes"] for one in self.totals]
        third = max(1, len(processes) // 3)
        early, late = max(processes[:third]), min(processes[-third:])
        if late > early:
            found.append(f"leak: {early:g} processes when whole -> {late:g}")
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
    return {
        line[line.index(SEGMENTS) :]
        for line in lines
        if SEGMENTS in line and not line.endswith("(deleted)")
    }
