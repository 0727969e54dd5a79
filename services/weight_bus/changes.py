"""Wakes waiters when the state of the bus changes."""

import asyncio
import contextlib
from collections.abc import Callable


class Changes:
    """One event for all state of the bus; used from one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        """Wake all waiters, so that they look again."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, condition: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Wait until `condition` holds; whether it does when the wait is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._event.wait()
        return condition()
