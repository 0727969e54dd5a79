"""The trainer's turns on devices that it shares with engines."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from services.observability.log import Log
from services.observability.metrics import TrainerMetrics
from services.protocol.errors import NoResources, NotReady
from services.protocol.placement import SharedSeat
from services.protocol.weights.weight_bus import LOAN_S, ReplicaState, WeightBus
from services.retry import retrying
from services.side_by_side import cancel
from services.trainer.config import TrainerConfig

_LOOK_S = 5.0
_RETRY_S = 0.5
KEPT_S = 60.0
"""How long a turn that is kept goes on without an operation."""

_log = Log("trainer")


class Ranks(Protocol):
    """The ranks of a group; see `services.trainer.lead.rank_group.RankGroup`."""

    name: str

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call every rank."""

    def kill(self, reason: str) -> None:
        """End all ranks; further calls raise `NotReady`."""


class DeviceTurn:
    """Borrows the devices for operations of the ranks, and returns them; nothing is done where
    ranks have devices of their own.

    Used by one task at a time, which holds the lock of the trainer's operations.

    Attributes:
        shared: ranks and engines share devices.
        kept: a turn goes on after its operation, for the next one.
        waiting: engines have yet to free the devices.
    """

    def __init__(self, config: TrainerConfig, bus: WeightBus) -> None:
        self.shared = config.placement == "shared"
        self.kept = self.waiting = False
        self._config, self._bus = config, bus
        self._ranks: Ranks | None = None  # whose turn it is
        self._began_at = self._used_at = 0.0
        self._renewal: asyncio.Task[None] | None = None

    async def seats(self) -> tuple[SharedSeat, ...] | None:
        """One for each rank, ranks of a node in a row; None: ranks share no devices.

        Raises:
            NoResources: engines with so many devices have not registered in `start_timeout_s`.
        """
        if not self.shared:
            return None
        needed, found = self._config.world_size, set[tuple[str, str]]()
        revision, deadline = -1, time.monotonic() + self._config.start_timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                table = await self._bus.watch(revision, min(left, _LOOK_S))
            except NotReady:
                await asyncio.sleep(_RETRY_S)
                continue
            revision = table.revision
            found = {
                (member.node_id, device)
                for member in table.members
                if member.state is not ReplicaState.DEAD
                for device in member.devices
            }
            if len(found) >= needed:
                return tuple(SharedSeat(node, device) for node, device in sorted(found)[:needed])
        raise NoResources(
            f"rollout servers with `placement: shared` have {len(found)} devices for {needed} "
            f"ranks after {self._config.start_timeout_s:g} s; `serve status` says why"
        )

    @asynccontextmanager
    async def on_devices(self, ranks: Ranks, *, loaded: bool = True) -> AsyncIterator[None]:
        """Have the ranks on their devices within the block, and after it while `kept`.

        Args:
            ranks: the group.
            loaded: False: the ranks come to their devices in the block, when they load; if they
                do not, they are killed before the devices are returned.

        Raises:
            NotReady: engines do not free the devices.
        """
        if not self.shared:
            yield
            return
        try:
            if self._ranks is not ranks:
                await self._begin(ranks, loaded=loaded)
            yield
        except BaseException:
            self.kept = False
            if not loaded:  # they have no model to park, and that error would hide this one
                ranks.kill("it never came up")
            raise
        finally:
            self._used_at = time.monotonic()
            if not self.kept:
                await self.end()

    async def end(self) -> None:
        """Free the devices, and return them to the engines; does nothing between turns."""
        ranks, self._ranks, self.kept = self._ranks, None, False
        if ranks is None:
            return
        try:
            with contextlib.suppress(NotReady):  # ranks that are gone have freed theirs
                TrainerMetrics.parked.set(sum(await ranks.call("park")))
        finally:
            TrainerMetrics.turn.observe(time.monotonic() - self._began_at)
            await cancel(self._renewal)
            await self._give_back(ranks.name)

    async def keep(self) -> None:
        """Have the turn of this operation go on after it."""
        self.kept = True

    async def end_forgotten(self, operations: asyncio.Lock) -> None:
        """End each turn that is kept for an operation which does not come, until cancelled.

        Args:
            operations: held by every operation.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            async with operations:
                if self.forgotten:
                    _log.warning("turn_forgotten", after_s=KEPT_S)
                    await self.end()

    @property
    def forgotten(self) -> bool:
        """A turn is kept for an operation that does not come."""
        return self.kept and time.monotonic() > self._used_at + KEPT_S

    async def _begin(self, ranks: Ranks, *, loaded: bool) -> None:
        await self.end()  # of a group that was lost
        self._ranks, self._began_at = ranks, time.monotonic()
        self._renewal = asyncio.create_task(self._renew(ranks.name), name="loan of devices")
        self.waiting = True
        try:
            await self._borrow(ranks.name)
        finally:
            self.waiting = False
        if loaded:
            await ranks.call("unpark")
        TrainerMetrics.turn_wait.observe(time.monotonic() - self._began_at)

    async def _borrow(self, borrower: str) -> None:
        deadline, left = time.monotonic() + self._config.start_timeout_s, tuple[str, ...]()
        while (rest := deadline - time.monotonic()) > 0:
            try:
                left = await self._bus.lend_devices(borrower, min(rest, _LOOK_S))
            except NotReady:
                await asyncio.sleep(_RETRY_S)
                continue
            if not left:
                return
        names = ", ".join(left) or "the weight bus does not answer"
        raise NotReady(
            f"rollout servers have not freed their devices in {self._config.start_timeout_s:g} s: "
            f"{names}"
        )

    async def _renew(self, borrower: str) -> None:
        while True:
            await asyncio.sleep(LOAN_S / 4)
            with contextlib.suppress(NotReady):  # a bus that is away is told when it is back
                await self._bus.lend_devices(borrower, 0.0)

    async def _give_back(self, borrower: str) -> None:
        """A bus that is away for longer ends the loan by itself."""
        try:
            await retrying(
                lambda: self._bus.return_devices(borrower), pauses=[_RETRY_S], timeout_s=LOAN_S
            )
        except NotReady as away:
            _log.warning("devices_not_returned", why=str(away))
