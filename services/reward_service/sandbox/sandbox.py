"""The service's workers: one for each core, which runs answers and the tests that call them."""

import asyncio
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeVar

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import SandboxUse
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.sandbox.compiler import Compiler
from services.reward_service.sandbox.core_queue import CoreQueue
from services.reward_service.sandbox.execution import (
    Execution,
    Outcome,
    SandboxCrashed,
    SlotFailed,
    SlotLost,
)
from services.reward_service.sandbox.self_test import Tier, strongest_jail
from services.reward_service.sandbox.slot import Slot

_log = Log("reward_service")
_T = TypeVar("_T")

_MAX_USES = 16
_HERE = f"{socket.gethostname()}-{os.getpid()}"
_uses: ContextVar[list[SandboxUse] | None] = ContextVar("sandbox_uses", default=None)
_CONTENDED_FACTOR = 4.0
"""How many times longer the second run may idle when the first may have been starved."""


_NEARLY = 0.9
"""Share of a limit at which it counts as reached: the tests' own CPU time is not exact."""


class SandboxWorker:
    """Two slots of which one computes at a time, so a worker takes one core.

    Attributes:
        answers: runs what the policy wrote; nothing that is expected enters it.
        trusted: runs checkers and asserts, which know what is expected; started when needed.
    """

    def __init__(self, answers: Slot, trusted: Slot) -> None:
        self.answers, self.trusted = answers, trusted

    async def start(self) -> None:
        """Make the slot for answers ready.

        Raises:
            SlotFailed: it cannot be started.
        """
        await _start(self.answers)

    async def run(self, execution: Execution, *, longest_s: float = math.inf) -> list[Outcome]:
        """Run to outcomes that are the answer's own doing, of the first processes or all.

        A lost slot is started anew and the run repeated once. A process that was stopped while
        idle on a busy machine may only have been starved, so it gets a second, longer chance.

        Args:
            execution: of the answer.
            longest_s: wall seconds that are left to the answer, for all chances together.

        Raises:
            SandboxCrashed: the answer lost its slot twice.
            SlotFailed: no process could be had, which is nothing the answer did.
        """
        execution = replace(execution, longest_s=longest_s)
        outcomes = await self._retry_lost(lambda: self.answers.run(execution))
        if outcomes[-1].killed == "wall":
            left_s = longest_s - sum(outcome.wall_s for outcome in outcomes)
            again_s = min(idle_stretch() * execution.wall_s, left_s)
            if again_s > execution.wall_s:
                RewardMetrics.retries.inc()
                stdin = (execution.stdin, *execution.more)[len(outcomes) - 1]
                longer = replace(execution, wall_s=again_s, stdin=stdin, more=(), longest_s=left_s)
                outcomes[-1:] = await self._retry_lost(lambda: self.answers.run(longer))
        return [_counted(outcome) for outcome in outcomes]

    async def run_with_tests(
        self,
        answer: Execution,
        tests: Callable[[float], Execution],
        wall_s: float,
        *,
        longest_s: float = math.inf,
    ) -> tuple[Outcome, Outcome]:
        """Run an answer and tests that call it, each in its own jail, joined by two pipes.

        Lost and starved processes get a second chance, as in `run`.

        Args:
            answer: the answer's side.
            tests: the tests' side, for the seconds that it may wait for the answer.
            wall_s: those seconds.
            longest_s: wall seconds that are left to the answer, for both chances together.

        Raises:
            SandboxCrashed: the answer lost its slot twice.
            SlotFailed: no process could be had, or the tests' own jail was lost.
        """
        both = await self._retry_lost(lambda: self._run_both(answer, tests(wall_s)))
        waited_s = both[1].wall_s - both[1].cpu_s
        if waited_s >= _NEARLY * wall_s:
            again_s = min(idle_stretch() * wall_s, longest_s - both[1].wall_s)
            if again_s > wall_s:
                RewardMetrics.retries.inc()
                longer = replace(answer, wall_s=answer.wall_s + again_s - wall_s)
                both = await self._retry_lost(lambda: self._run_both(longer, tests(again_s)))
        return _counted(both[0]), both[1]

    async def run_trusted(self, execution: Execution) -> Outcome:
        """Run the user's test code.

        Raises:
            SlotFailed: the jail could not be started, or was lost.
        """
        await _start(self.trusted)
        with _tests_jail():
            (outcome,) = await self.trusted.run(execution)
        return outcome

    def close(self) -> None:
        """End both slots."""
        self.answers.close()
        self.trusted.close()

    async def _retry_lost(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """Run, and once more in a new slot if the answer's is lost."""
        try:
            return await run()
        except SlotLost as error:
            _log.warning("slot_lost", reason=str(error))
            RewardMetrics.retries.inc()
            await _start(self.answers)
        try:
            return await run()
        except SlotLost as error:
            raise SandboxCrashed(str(error)) from error

    async def _run_both(self, answer: Execution, tests: Execution) -> tuple[Outcome, Outcome]:
        await _start(self.trusted)
        (calls_in, calls_out), (replies_in, replies_out) = os.pipe(), os.pipe()
        tests = replace(tests, lent=(replies_in, calls_out))
        answer = replace(answer, lent=(calls_in, replies_out))
        try:
            with _tests_jail():
                tests_outputs = self.trusted.begin(tests)
            try:
                answer_outputs = self.answers.begin(answer)
            except SlotLost:
                self.trusted.abandon(tests_outputs)
                raise
        finally:  # or neither would learn of the other's end
            for descriptor in (calls_in, calls_out, replies_in, replies_out):
                os.close(descriptor)
        ends = self.answers.end(answer, answer_outputs), self.trusted.end(tests, tests_outputs)
        mine, theirs = await asyncio.gather(*ends, return_exceptions=True)
        with _tests_jail():
            if isinstance(theirs, SlotLost):
                raise theirs
        if isinstance(mine, BaseException):
            raise mine
        if isinstance(theirs, BaseException):
            raise theirs
        return mine[0], theirs[0]


async def _start(slot: Slot) -> None:
    """Start it if it does not run, and once more if that fails.

    Raises:
        SlotFailed: twice.
    """
    if slot.alive:
        return
    try:
        await slot.start()
    except SlotFailed as error:
        _log.warning("slot_failed", reason=str(error))
        await slot.start()


@contextmanager
def _tests_jail() -> Iterator[None]:
    """A loss of the jail for tests is nothing that the answer did."""
    try:
        yield
    except SlotLost as error:
        raise SlotFailed(f"the tests' own jail was lost: {error}") from error


def _counted(outcome: Outcome) -> Outcome:
    if outcome.denied_by is not None:
        RewardMetrics.denials.inc(1, {"layer": outcome.denied_by})
    return outcome


def idle_stretch() -> float:
    """How many times longer a process may idle, as it may be starved on a contended machine."""
    return _CONTENDED_FACTOR if _machine_is_contended() else 1.0


def crowd() -> float:
    """Processes for each core, over the last minute; 1 at least."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _machine_is_contended() -> bool:
    return crowd() > 1.5


class Sandbox:
    """Lends workers, one answer each.

    Attributes:
        tier: of its jails, once it is started.
        landlock_abi: of the kernel, once it is started.
        compiler: of answers, once it is started.
        cores: for all work; each worker, and each call of a helper process, holds one.
        user_graders: places for calls of users' graders, which take one before they wait for a
            core, so that no call holds a core while it waits for its place.
    """

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
        self.user_graders = CoreQueue(
            cores=config.user_grader_processes, bound_s=math.inf, wait_s=config.queue_wait_s
        )

    async def start(self) -> None:
        """Choose the strongest jail that works here, prove it, and start every slot.

        Raises:
            InvalidInput: no working jail has the required tier; names what is missing.
        """
        jail, self.tier = await strongest_jail(self._config)
        self.compiler = Compiler(self._config, jail)
        jail = replace(jail, shared=str(self.compiler.shared))
        seccomp, start_s = build_filter(), self._config.slot_start_s
        self._workers = [
            SandboxWorker(*(Slot(jail, seccomp, start_s=start_s) for _ in range(2)))
            for _ in range(self._config.slots)
        ]
        self._idle = list(self._workers)
        for worker in self._workers:
            try:
                await worker.start()
            except SlotFailed as error:
                self.close()
                raise InvalidInput("slots", self._config.slots, f"One failed: {error}.") from None
        self.landlock_abi = self._workers[0].answers.landlock_abi
        RewardMetrics.tier.set(1.0, {"tier": str(self.tier)})
        RewardMetrics.queue.follow(lambda: self.cores.waiting + self.user_graders.waiting)
        RewardMetrics.queued_cpu.follow(lambda: self.queued_s)
        RewardMetrics.queue_age.follow(lambda: max(self.cores.age_s, self.user_graders.age_s))
        _log.info(
            "sandbox_started",
            tier=self.tier,
            bubblewrap=str(jail.bubblewrap or ""),
            slots=len(self._workers),
            landlock_abi=self.landlock_abi,
        )

    @property
    def queued_s(self) -> float:
        """Estimated CPU-seconds of all work that waits."""
        return self.cores.queued_s + self.user_graders.queued_s

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
        if noted is not None and len(noted) < _MAX_USES:
            seconds = time.monotonic() - began
            name = f"{_HERE}/{number}"
            noted.append(SandboxUse(sandbox=name, began_at=began_at, seconds=seconds))
