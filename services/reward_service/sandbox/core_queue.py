"""Hands out cores to work of an estimated size, fairly between callers."""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

caller: ContextVar[str] = ContextVar("caller", default="")
"""The caller of the work in progress: the name of an API key, or of a run."""


class QueueFull(RuntimeError):
    """There is more work queued than may be, or some waited too long.

    Attributes:
        retry_after_s: seconds until more may be accepted.
    """

    def __init__(self, reason: str, *, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(reason)


class _Waiter(NamedTuple):
    """Work in the queue, ordered by its virtual finish; no two have the same number."""

    finish: float
    number: int
    kind: str
    who: str
    estimate_s: float
    since: float
    granted: asyncio.Future[None]


@dataclass
class _Kind:
    """Work in the queue that is expected to take the same time."""

    estimate_s: float
    waiting: int = 0


class CoreQueue:
    """Cores for as many pieces of work at a time; the others wait.

    Callers share the cores in proportion to the estimated processor time of their work, in any
    order of arrival: start-time fair queueing (Goyal, Vin and Cheng 1996), ordered by finish tags.

    Args:
        cores: pieces of work at a time.
        bound_s: estimated CPU-seconds that may wait.
        wait_s: longest wait of one piece of work.
    """

    def __init__(self, *, cores: int, bound_s: float, wait_s: float) -> None:
        self.queued_s = 0.0
        self._cores, self._bound_s, self._wait_s = cores, bound_s, wait_s
        self._free = cores
        self._waiting: list[_Waiter] = []
        self._kinds: dict[str, _Kind] = {}
        self._numbers = itertools.count()
        self._now = 0.0  # virtual time: the finish tag of the work granted last
        self._finished: dict[str, float] = {}
        self._capacity = asyncio.Event()
        self._capacity.set()

    @property
    def waiting(self) -> int:
        """Pieces of work that wait."""
        return len(self._waiting)

    @property
    def age_s(self) -> float:
        """How long the oldest of them has been waiting; may be asked from another thread."""
        now = time.monotonic()
        return now - min((waiter.since for waiter in list(self._waiting)), default=now)

    def refuse_if_full(self) -> None:
        """Say so if nothing more may be queued.

        Raises:
            QueueFull: with the seconds until more may be accepted.
        """
        if self.queued_s >= self._bound_s:
            wait_s = math.ceil(max(1.0, (self.queued_s - self._bound_s / 2) / self._cores))
            reason = f"{self.queued_s:.0f} CPU-seconds of work are waiting already"
            raise QueueFull(reason, retry_after_s=wait_s)

    async def wait_for_capacity(self) -> None:
        """Wait until more may be queued."""
        while self.queued_s >= self._bound_s:
            self._capacity.clear()
            await self._capacity.wait()

    @asynccontextmanager
    async def core(self, kind: str, estimate_s: float) -> AsyncIterator[None]:
        """Hold a core for work of a kind, of which all that waits has this estimate from now on.

        Args:
            kind: any name; work of the same name takes about the same time.
            estimate_s: of it, in CPU-seconds.

        Raises:
            QueueFull: none became free in time.
        """
        await self._acquire(kind, estimate_s)
        try:
            yield
        finally:
            self._free += 1
            self._grant()

    def revise(self, kind: str, estimate_s: float) -> None:
        """Count what waits of a kind with another estimate; the order of the queue stays."""
        if (known := self._kinds.get(kind)) is not None:
            self._grow(known.waiting * (estimate_s - known.estimate_s))
            known.estimate_s = estimate_s

    async def _acquire(self, kind: str, estimate_s: float) -> None:
        who = caller.get()
        finish = max(self._now, self._finished.get(who, 0.0)) + estimate_s
        self._finished[who] = finish
        granted = asyncio.get_running_loop().create_future()
        number, since = next(self._numbers), time.monotonic()
        waiter = _Waiter(finish, number, kind, who, estimate_s, since, granted)
        heapq.heappush(self._waiting, waiter)
        self.revise(kind, estimate_s)
        self._kinds.setdefault(kind, _Kind(estimate_s)).waiting += 1
        self._grow(estimate_s)
        self._grant()
        try:
            # Not wait_for, which may swallow a cancellation and with it the answer's deadline.
            async with asyncio.timeout(self._wait_s):
                await waiter.granted
        except BaseException as error:
            self._give_up(waiter)
            if isinstance(error, TimeoutError):
                raise QueueFull(f"no core in {self._wait_s:g} s") from None
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.granted.done() and not waiter.granted.cancelled():
            self._free += 1  # it was granted in the same moment
            self._take_back(waiter)
            self._grant()
            return
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            heapq.heapify(self._waiting)
            self._take_back(waiter)
            self._left(waiter.kind)

    def _take_back(self, waiter: _Waiter) -> None:
        """Its caller's next work need not wait for work that is not done."""
        if waiter.who in self._finished:
            self._finished[waiter.who] -= waiter.estimate_s

    def _grant(self) -> None:
        while self._free and self._waiting:
            waiter = heapq.heappop(self._waiting)
            self._left(waiter.kind)
            if waiter.granted.cancelled():  # and has not come to say so yet
                self._take_back(waiter)
                continue
            self._free -= 1
            self._now = waiter.finish
            waiter.granted.set_result(None)
        if len(self._finished) > 2 * len(self._waiting):  # tags in the past say nothing
            self._finished = {who: at for who, at in self._finished.items() if at > self._now}

    def _left(self, kind: str) -> None:
        left = self._kinds[kind]
        left.waiting -= 1
        if not left.waiting:
            del self._kinds[kind]
        self._grow(-left.estimate_s)

    def _grow(self, estimate_s: float) -> None:
        self.queued_s = self.queued_s + estimate_s if self._waiting else 0.0
        if self.queued_s < self._bound_s:
            self._capacity.set()
