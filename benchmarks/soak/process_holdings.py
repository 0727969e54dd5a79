"""What a process holds at one time, for the soaks that look whether it grows."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

MIB = 1 << 20
HELD = ("rss_mib", "fds", "threads")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One process at one time.

    Attributes:
        at_s: seconds since the first census.
        name: what it is; Ray's processes call themselves by what they do at the time.
        began: when the process did, seconds since 1970.
        age_s: seconds since then.
    """

    at_s: float
    name: str
    pid: int
    began: float
    age_s: float
    rss_mib: float
    fds: int
    threads: int


def holding_of(process: psutil.Process, *, name: str, at_s: float) -> Holding:
    """What a process holds now.

    Raises:
        psutil.Error: it has ended, or may not be looked at.
    """
    with process.oneshot():
        began = process.create_time()
        return Holding(
            at_s=at_s,
            name=name,
            pid=process.pid,
            began=began,
            age_s=time.time() - began,
            rss_mib=process.memory_info().rss / MIB,
            fds=process.num_fds(),
            threads=process.num_threads(),
        )


def of_each(holdings: Iterable[Holding], *, older_s: float, least: int) -> list[list[Holding]]:
    """A list for every process, of those taken when it was older than `older_s`; only of processes
    of which there are at `least` so many."""
    by_process: dict[tuple[int, float], list[Holding]] = defaultdict(list)
    for one in holdings:
        if one.age_s >= older_s:
            by_process[one.pid, one.began].append(one)
    return [own for own in by_process.values() if len(own) >= least]
