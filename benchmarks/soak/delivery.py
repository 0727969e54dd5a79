"""A new version every so often, and an eye on when the leased replicas serve it."""

import asyncio
import time
from contextlib import suppress

from benchmarks.soak.engine import Findings
from benchmarks.soak.load import Load
from services.changes import Changes
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import MemberTable
from tests.chaos.answers import Judge
from tests.chaos.scene import READY_S, Scene

KEPT = 200
"""Versions whose weights the reference can load; a replica that serves an older one is wrong."""

_LOOK_S = 0.5


class Delivery:
    """Trains and publishes, and follows the member table.

    Attributes:
        published: when each version was on its way, by the monotonic clock.
        skipped: pushes that were due while the one before was not over.
        reached: seconds from publish until a leased replica served the version or a later
            one, of each commit that was seen.
        silence: longest that a leased replica went without a commit, seconds.
        bus_ids: incarnations of the bus.
    """

    def __init__(
        self, scene: Scene, load: Load, judge: Judge, findings: Findings, *, silence_s: float
    ) -> None:
        self._scene, self._load, self._judge, self._findings = scene, load, judge, findings
        self._silence_s = silence_s
        self.published: dict[int, float] = {}
        self.skipped = 0
        self.reached: list[float] = []
        self.silence = 0.0
        self.bus_ids: set[str] = set()
        self._moved: dict[str, tuple[int, float]] = {}  # version of a leased one, since when
        self._newest = "", -1
        self._changes = Changes()

    async def push(self, every_s: float) -> None:
        """One train step whenever one is due, until cancelled; one that is late is skipped.

        Raises:
            AssertionError: the trainer does not come back, or versions do not grow.
            TimeoutError: a step hangs.
        """
        due = time.monotonic()
        while True:
            async with asyncio.timeout(2 * READY_S):
                version = await self._scene.train()
            now = time.monotonic()
            assert not self.published or version > max(self.published), "versions go backwards"
            self.published[version] = now
            self._judge.forget(version - KEPT)
            self._changes.notify()
            late = max(0, int((now - due) / every_s))
            self.skipped += late
            due += (late + 1) * every_s
            await asyncio.sleep(max(0.0, due - now))

    async def made_after(self) -> int:
        """A version whose push is over after this call."""
        before = len(self.published)
        pushed = await self._changes.until(
            lambda: len(self.published) > before, timeout_s=2 * READY_S
        )
        assert pushed, "nothing is pushed any more"
        return max(self.published)

    async def watch(self) -> None:
        """Follow the table and the leases, until cancelled."""
        revision, heard = -1, time.monotonic()
        while True:
            try:
                table = await self._scene.bus.watch(revision, _LOOK_S)
            except NotReady:
                revision = -1
                assert time.monotonic() - heard < READY_S, "the bus does not come back"
                await asyncio.sleep(_LOOK_S)
                continue
            revision, heard = table.revision, time.monotonic()
            self.bus_ids.add(table.bus_id)
            self._load.follow(table)
            self._load.raise_failure()
            self._look_at(table, heard)

    def _look_at(self, table: MemberTable, now: float) -> None:
        newest = table.bus_id, -1 if table.newest_version is None else table.newest_version
        # A new bus learns from its members, one after another, what there is.
        if self._newest > newest and self._newest[0] == newest[0]:
            what = f"the newest went from {self._newest[1]} to {newest[1]}"
            self._findings.wrong("version", what)
        self._newest = newest
        moved: dict[str, tuple[int, float]] = {}
        for member in table.leased:
            held = -1 if member.committed_version is None else member.committed_version
            before, since = self._moved.get(member.replica_id, (-1, now))
            if held < before:
                what = f"{member.replica_id} went from {before} to {held}"
                self._findings.wrong("version", what)
            if held > before:
                with suppress(KeyError):
                    self.reached.append(now - self.published[held])
                since = now
            moved[member.replica_id] = held, since
            self.silence = max(self.silence, now - since)
            if now - since > self._silence_s:
                what = f"{member.replica_id} has a lease but no new version for {now - since:.0f} s"
                self._findings.wrong("silence", what)
        self._moved = moved
