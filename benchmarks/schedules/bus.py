"""The weight bus and its replicas in the scheduling benchmark, in virtual time."""

import asyncio
import math
from bisect import bisect
from collections.abc import Callable

from benchmarks.schedules.hardware import simulated
from millrace_tools.simulation.hardware import Hardware
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState

_WAVES = 8


class Bus:
    """All replicas commit a version in a few waves until `push_s` after it was published."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._committed = [0] * _WAVES
        self._revision = 1
        self._waiters: list[asyncio.Future[None]] = []
        self._due: list[tuple[int, Callable[[], None]]] = []
        self._table: MemberTable | None = None
        self._commits: list[tuple[float, int]] = []
        self.newest: int | None = None

    def publish(self) -> int:
        """A new version; returns it."""
        self.newest = (self.newest or 0) + 1
        loop, version = asyncio.get_running_loop(), self.newest
        for wave in range(_WAVES):
            delay = self._hardware.push_s * (wave + 1) / _WAVES
            loop.call_later(delay, self._commit, wave, version)
        self._changed()
        return version

    def served(self, began: float, ended: float) -> list[tuple[int, float]]:
        """Versions that sampled in this time, and until when each did."""
        first = max(0, bisect(self._commits, (began, math.inf)) - 1)
        commits = self._commits[first : bisect(self._commits, (ended, -math.inf))]
        until = [at for at, _ in commits[1:]] + [ended]
        return [(version, at) for (_, version), at in zip(commits, until, strict=True)]

    def when(self, version: int, then: Callable[[], None]) -> None:
        """Call this as soon as every replica serves the version."""
        if all(version != due for due, _ in self._due):
            self._due.append((version, then))

    @simulated
    def _commit(self, wave: int, version: int) -> None:
        self._committed[wave] = max(version, self._committed[wave])
        if wave == 0:  # spans are labelled as on the replicas that come first
            self._commits.append((asyncio.get_running_loop().time(), version))
        self._changed()

    def _changed(self) -> None:
        self._revision += 1
        self._table = None
        due = [one for one in self._due if one[0] <= min(self._committed)]
        self._due = [one for one in self._due if one not in due]
        for _, then in due:
            then()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """See `WeightBus`."""
        if revision >= self._revision:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await asyncio.wait({waiter}, timeout=wait_s)
        if self._table is None:
            self._table = self._look()
        return self._table

    @simulated
    def _look(self) -> MemberTable:
        return MemberTable(
            bus_id="b",
            revision=self._revision,
            newest_version=self.newest,
            lease_s=10.0,
            members=tuple(self._member(i) for i in range(self._hardware.replicas)),
            trainer_ready=True,
            pushes=0,
        )

    def _member(self, number: int) -> Member:
        version = self._committed[number % _WAVES] or None
        return Member(
            replica_id=f"replica-{number}",
            address="http://127.0.0.1:1",
            state=ReplicaState.LIVE if version else ReplicaState.JOINING,
            committed_version=version,
            leased=version is not None,
            model="tiny",
            max_model_len=4096,
            pid=1,
        )

    async def versions(self) -> tuple[VersionRecord, ...]:
        """See `WeightBus`; nobody looks at them."""
        return ()

    async def want_replicas(self, replicas: int) -> None:
        """See `WeightBus`; there are as many as there are."""

    async def bound_lag(self, max_lag: int | None) -> None:
        """See `WeightBus`; replicas here are never behind for long."""
