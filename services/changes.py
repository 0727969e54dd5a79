"""Waiting for something to change, on one event loop."""

import asyncio
import contextlib
from collections.abc import Callable


class Changes:
    """A counter of changes that several tasks can wait on.

    A waiter reads `count`, looks at the state without awaiting, and then waits for
    `after(count)`: no change in between is lost, and none is taken from another waiter.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake every waiter."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def after(self, seen: int, timeout_s: float) -> bool:
        """Wait until `count` is above `seen`; False if it is not after `timeout_s`."""
        return await self.until(lambda: self.count > seen, timeout_s=timeout_s)

    async def until(self, condition: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Wait until `condition` holds after a change; returns whether it does in the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._event.wait()
        return condition()
