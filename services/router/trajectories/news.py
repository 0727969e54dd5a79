"""Waits for something that others announce."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class News:
    """Something may have changed; used in one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake all that wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, look: Callable[[], T], timeout_s: float) -> T:
        """What `look` finds, as soon as that is something; at the end of the time, what it found
        last."""
        deadline = time.monotonic() + timeout_s
        while not (found := look()) and (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._event.wait()
            except TimeoutError:
                break
        return found
