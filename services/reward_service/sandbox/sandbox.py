"""The service's workers: one for each core, and the proof that they hold."""

import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import SandboxUse
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.bubblewrap import OLDEST, PACKAGE, NoBubblewrap
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.sandbox.compiler import Compiler
from services.reward_service.sandbox.core_queue import CoreQueue
from services.reward_service.sandbox.execution import SlotFailed
from services.reward_service.sandbox.sandbox_worker import SandboxWorker
from services.reward_service.sandbox.self_test import SelfTestFailed, Tier, tier_of
from services.reward_service.sandbox.slot import Slot

_log = Log("reward_service")

_MOST_USES = 16
_HERE = f"{socket.gethostname()}-{os.getpid()}"
_uses: ContextVar[list[SandboxUse] | None] = ContextVar("sandbox_uses", default=None)

_FIX_B = (
    "Untrusted code cannot be held here. Needed: Linux 5.13 or newer with Landlock enabled "
    "(lsm=...,landlock on the kernel command line) and seccomp filters, on x86_64 or aarch64; "
    "as root also the capabilities SETUID and SETGID. gVisor has no Landlock: use another "
    "runtime class."
)
_FIX_A = (
    f"Tier A needs bubblewrap {'.'.join(map(str, OLDEST))} or newer (pip install {PACKAGE}, or "
    "apt-get install bubblewrap) and user namespaces (user.max_user_namespaces > 0, no AppArmor "
    "or container rule against them); or set require_tier: B."
)


class Sandbox:
    """Lends workers, one answer each."""

    def __init__(self, config: RewardServiceConfig) -> None:
        self.tier: Tier | None = None
        self.landlock_abi = 0
        self.compiler: Compiler | None = None
        self._config = config
        self._workers: list[SandboxWorker] = []
        self._idle: list[SandboxWorker] = []
        self.cores = CoreQueue(
            cores=config.slots, bound_s=config.queue_cpu_s, wait_s=config.queue_wait_s
        )

    async def start(self) -> None:
        """Choose the strongest jail that works here, prove it, and start every slot.

        Raises:
            InvalidInput: no working jail has the required tier; names what is missing.
        """
        jail = await self._strongest_jail()
        self.compiler = Compiler(self._config, jail)
        self._workers = [self._new_worker(jail) for _ in range(self._config.slots)]
        self._idle = list(self._workers)
        for worker in self._workers:
            try:
                await worker.start()
            except SlotFailed as error:
                self.close()
                raise InvalidInput("slots", self._config.slots, f"One failed: {error}.") from None
        self.landlock_abi = self._workers[0].answers.landlock_abi
        RewardMetrics.tier.set(1.0, {"tier": str(self.tier)})
        RewardMetrics.queue.follow(lambda: self.cores.waiting)
        RewardMetrics.queued_cpu.follow(lambda: self.cores.queued_s)
        RewardMetrics.queue_age.follow(lambda: self.cores.age_s)
        _log.info(
            "sandbox_started",
            tier=self.tier,
            bubblewrap=str(jail.bubblewrap or ""),
            slots=len(self._workers),
            landlock_abi=self.landlock_abi,
        )

    def _new_worker(self, jail: Jail) -> SandboxWorker:
        seccomp, start_s = build_filter(), self._config.slot_start_s
        answers, trusted = (Slot(jail, seccomp, start_s=start_s) for _ in range(2))
        return SandboxWorker(answers, trusted)

    async def _strongest_jail(self) -> Jail:
        complaints: dict[str, str] = {}
        for namespaces in [True, False] if self._config.use_bubblewrap else [False]:
            try:
                jail = Jail.here(namespaces=namespaces)
                tier = await tier_of(jail, start_s=self._config.slot_start_s)
            except (NoBubblewrap, SelfTestFailed) as error:
                complaints["with bubblewrap" if namespaces else "without"] = str(error)
                continue
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
    async def worker(self, kind: str, estimate_s: float) -> AsyncIterator[SandboxWorker]:
        """A living worker for one answer of a kind that may take so many CPU-seconds.

        Raises:
            QueueFull: none became free in time.
            SlotFailed: its slot was lost earlier and cannot be started again.
        """
        async with AsyncExitStack() as held:
            with tracing.span("queue"):
                await held.enter_async_context(self.cores.core(kind, estimate_s))
            worker = self._idle.pop()
            try:
                await worker.start()
                with record_use(self._workers.index(worker)):
                    yield worker
            finally:
                self._idle.append(worker)

    def close(self) -> None:
        """End every slot and all that runs in them."""
        for worker in self._workers:
            worker.close()


@contextmanager
def recorded_uses() -> Iterator[list[SandboxUse]]:
    """The list that `record_use` adds to, in this task and its child tasks."""
    noted: list[SandboxUse] = []
    token = _uses.set(noted)
    try:
        yield noted
    finally:
        _uses.reset(token)


@contextmanager
def record_use(number: int) -> Iterator[None]:
    """The answer has sandbox `number` of this process."""
    began_at, began = time.time(), time.monotonic()
    try:
        yield
    finally:
        noted = _uses.get()
        if noted is not None and len(noted) < _MOST_USES:
            seconds = time.monotonic() - began
            name = f"{_HERE}/{number}"
            noted.append(SandboxUse(sandbox=name, began_at=began_at, seconds=seconds))
