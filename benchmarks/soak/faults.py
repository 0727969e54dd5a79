"""Faults that a soak injects into the running parts, one at a time; each heals before the next.

Everything that is taken away comes back, as Serve and Ray would bring it back. The replica
that has been there longest is frozen and sent wrong bytes, but never ended: it lives as long
as the soak, so that a leak can show in it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from benchmarks.soak.load import Load
from tests.chaos.scene import KILL_S, READY_S, Scene, until_ended

FREEZES_S = (1.0, 5.0, 9.0, 15.0)
"""Shorter than a lease, as long as it takes to be suspect, dead, and forgotten."""

BUS_AWAY_S = 5.0
CORRUPTED_BUCKETS = 4


class Faults:
    """Draws faults so that every kind comes once before any comes again."""

    def __init__(self, scene: Scene, load: Load, seed: int) -> None:
        self._scene, self._load = scene, load
        self._draw = random.Random(seed)
        self._bag: list[str] = []
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a replica": self._kill_replica,
            "kill an engine": self._kill_engine,
            "freeze a replica": self._freeze_replica,
            "kill a rank": self._kill_rank,
            "freeze a rank": self._freeze_rank,
            "kill the bus": self._kill_bus,
            "corrupt a bucket": self._corrupt,
            "join, and one leaves": self._join,
        }

    async def next(self, made_after: Callable[[], Awaitable[int]]) -> tuple[str, float]:
        """Inject one fault and wait until everything is whole again.

        Args:
            made_after: a version that is published after the call.

        Returns:
            Its kind, and seconds until everything served a version that was made after it was
            healed, freezes included.

        Raises:
            AssertionError: it does not become whole, or something is left behind.
        """
        if not self._bag:
            self._bag = self._draw.sample(sorted(self._kinds), len(self._kinds))
        kind, started = self._bag.pop(), time.monotonic()
        try:
            await self._kinds[kind]()
            await self._scene.until_served(await made_after(), list(self._scene.replicas))
        except AssertionError as failed:
            raise AssertionError(f"after {kind!r}: {failed}") from failed
        return kind, time.monotonic() - started

    async def _kill_replica(self) -> None:
        await until_ended(self._scene.kill_replica(self._youngest()), KILL_S)
        await self._replace()

    async def _kill_engine(self) -> None:
        victim = self._youngest()
        self._scene.kill_below(victim, "EngineCore")
        await self._scene.until_gone(victim)
        await self._replace()

    async def _freeze_replica(self) -> None:
        await self._freeze(self._scene.replicas[self._any_replica()].pid)

    async def _kill_rank(self) -> None:
        self._draw.choice(self._scene.ranks.ranks).process.kill()

    async def _freeze_rank(self) -> None:
        await self._freeze(self._draw.choice(self._scene.ranks.ranks).process.pid)

    async def _kill_bus(self) -> None:
        self._scene.kill_bus()
        await asyncio.sleep(self._draw.uniform(0, BUS_AWAY_S))
        self._scene.start_bus()

    async def _corrupt(self) -> None:
        rank = self._draw.choice(self._scene.ranks.ranks)
        bucket, victim = self._draw.randrange(CORRUPTED_BUCKETS), self._any_replica()
        await rank.inject_fault.remote("corrupt", victim, bucket)
        await self._scene.until(
            lambda table: any(
                f"digest of bucket {bucket}" in member.last_error
                for member in table.members
                if member.replica_id == victim
            ),
            f"{victim} refuses bucket {bucket}",
        )

    async def _join(self) -> None:
        leaver, joiner = self._youngest(), self._scene.start_replica()
        await self._scene.first_lease(joiner)
        await self._load.served(joiner, READY_S)
        self._scene.send_away(leaver)
        await self._scene.until_gone(leaver, exitcode=0)

    async def _freeze(self, pid: int) -> None:
        self._scene.freeze(pid)
        try:
            await asyncio.sleep(self._draw.choice(FREEZES_S))
        finally:
            self._scene.thaw(pid)

    async def _replace(self) -> None:
        await self._scene.first_lease(self._scene.start_replica())

    def _any_replica(self) -> str:
        return self._draw.choice(list(self._scene.replicas))

    def _youngest(self) -> str:
        return list(self._scene.replicas)[-1]
