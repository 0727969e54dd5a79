"""Lets the calls of one workspace run one after the other."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from services.reward_service.sandbox.core_queue import CoreQueue, QueueFull, caller
from services.reward_service.workspaces.errors import QuotaFull

_T = TypeVar("_T")
_MAX_WAITING = 16
_ESTIMATE_S = 1.0
"""Of every call: what one takes is not known, so that owners share places by their calls."""


class Turns:
    """A queue of calls, each of which also takes a place among those of the whole replica.

    A call that has begun goes on to its end when its caller is cancelled, so that the jail is left
    in order; it is told to be short.

    Args:
        places: of the replica.
        owner: of the workspace; owners share the places.
        on_idle: called when the last call has ended.
    """

    def __init__(
        self, places: CoreQueue, owner: str, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        self._places, self._owner, self.on_idle = places, owner, on_idle
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._began: asyncio.Task[Any] | None = None
        self._abort: Callable[[], None] | None = None
        self._aborted = False
        self._gone: Callable[[], Exception] | None = None

    @property
    def busy(self) -> bool:
        """Whether calls run or wait."""
        return bool(self._tasks)

    @property
    def aborted(self) -> bool:
        """Whether nobody waits any more for the call that runs."""
        return self._aborted

    async def run(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """The result of a call, when those before it have ended.

        Raises:
            QuotaFull: too many wait already, or it waited too long.
        """
        if self._gone is not None:
            raise self._gone()
        if len(self._tasks) > _MAX_WAITING:
            raise QuotaFull(f"{_MAX_WAITING} calls of this workspace are waiting already")
        task = asyncio.ensure_future(self._turn(call))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._gone is not None:
                raise self._gone() from None
            if task is not self._began:
                task.cancel()
            elif not self._aborted:
                self._aborted = True
                if self._abort is not None:
                    self._abort()
            raise

    def can_end(self, abort: Callable[[], None]) -> None:
        """Have `abort` called when nobody waits any more for the call that runs."""
        self._abort = abort
        if self._aborted:
            abort()

    def stop(self, gone: Callable[[], Exception]) -> None:
        """Refuse all calls that have not begun, from now on, with an error."""
        self._gone = gone
        for task in self._tasks:
            if task is not self._began:
                task.cancel()

    async def ended(self, timeout_s: float) -> None:
        """Wait until no call runs or waits."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def _turn(self, call: Callable[[], Awaitable[_T]]) -> _T:
        caller.set(self._owner)
        async with self._lock:
            try:
                async with self._places.core("workspace", _ESTIMATE_S):
                    self._began = asyncio.current_task()
                    try:
                        return await call()
                    finally:
                        self._began, self._abort, self._aborted = None, None, False
            except QueueFull as full:
                raise QuotaFull(str(full), retry_after_s=full.retry_after_s) from None

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone
        if not self._tasks:
            self.on_idle()
