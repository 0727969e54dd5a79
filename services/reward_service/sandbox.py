"""The service's slots: a bounded number of sandboxes and of answers waiting for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.reward_service.execution import SlotFailed
from services.reward_service.jail import Jail
from services.reward_service.seccomp_filter import build_filter
from services.reward_service.self_test import SelfTestFailed, Tier, find_tier
from services.reward_service.slot import Slot

_log = Log("reward_service")

_FIX_B = (
    "Untrusted code cannot be held here. Needed: Linux 5.13 or newer with Landlock enabled "
    "(lsm=...,landlock on the kernel command line) and seccomp filters, on x86_64 or aarch64; "
    "as root also the capabilities SETUID and SETGID. gVisor has no Landlock: use another "
    "runtime class."
)
_FIX_A = (
    "Tier A needs bubblewrap (apt install bubblewrap) and user namespaces "
    "(user.max_user_namespaces > 0, no AppArmor or container rule against them); or set "
    "require_tier: B."
)


class QueueFull(RuntimeError):
    """More answers wait for a slot than the queue holds, or one waited too long."""


class Sandbox:
    """Lends slots, one answer each, first come first served."""

    def __init__(self, config: RewardServiceConfig) -> None:
        self.tier: Tier | None = None
        self._config = config
        self._idle: asyncio.Queue[Slot] = asyncio.Queue()
        self._slots: list[Slot] = []
        self._waiting = 0

    async def start(self) -> None:
        """Choose the strongest jail that works here, prove it, and start every slot.

        Raises:
            InvalidInput: nothing that works is of the required tier; says what is missing.
        """
        jail = await self._strongest_jail()
        seccomp = build_filter()
        start_s = self._config.slot_start_s
        self._slots = [Slot(jail, seccomp, start_s=start_s) for _ in range(self._config.slots)]
        for slot in self._slots:
            try:
                await slot.start()
            except SlotFailed as error:
                self.close()
                raise InvalidInput("slots", self._config.slots, f"One failed: {error}.") from None
            self._idle.put_nowait(slot)
        _log.info(
            "sandbox_started",
            tier=self.tier,
            slots=len(self._slots),
            landlock_abi=self._slots[0].landlock_abi,
        )

    async def _strongest_jail(self) -> Jail:
        complaints: dict[str, str] = {}
        for namespaces in [True, False] if self._config.use_bubblewrap else [False]:
            jail = Jail.here(namespaces=namespaces)
            slot = Slot(jail, build_filter(), start_s=self._config.slot_start_s)
            try:
                await slot.start()
                tier = await find_tier(slot)
            except (SlotFailed, SelfTestFailed) as error:
                complaints["with bubblewrap" if namespaces else "without"] = str(error)
                continue
            finally:
                slot.close()
            if tier <= self._config.require_tier:
                self.tier = tier
                if complaints:
                    _log.warning("sandbox_without_namespaces", reason=complaints)
                return jail
        found = "; ".join(f"{how}: {why}" for how, why in complaints.items())
        fix = _FIX_B if "without" in complaints else _FIX_A
        raise InvalidInput(
            "require_tier", self._config.require_tier, fix + (f" Found: {found}." if found else "")
        )

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """A living slot for one answer.

        Raises:
            QueueFull: no slot became free in time, or too many wait already.
            SlotFailed: the slot was lost earlier and cannot be started again.
        """
        slot = await self._next_idle()
        try:
            if not slot.alive:
                await slot.start()
            yield slot
        finally:
            self._idle.put_nowait(slot)

    async def _next_idle(self) -> Slot:
        if self._waiting >= self._config.queue_bound + self._idle.qsize():
            raise QueueFull(f"{self._waiting} answers are waiting already")
        self._waiting += 1
        RewardMetrics.queue.set(self._waiting)
        try:
            # Not wait_for, which may swallow a cancellation and with it the answer's deadline.
            async with asyncio.timeout(self._config.queue_wait_s):
                return await self._idle.get()
        except TimeoutError:
            raise QueueFull(f"no slot in {self._config.queue_wait_s:g} s") from None
        finally:
            self._waiting -= 1
            RewardMetrics.queue.set(self._waiting)

    def close(self) -> None:
        """End every slot and all that runs in them."""
        for slot in self._slots:
            slot.close()
