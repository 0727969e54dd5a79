"""Waiting for something to change, on one event loop."""

import asyncio


class Changes:
    """A counter of changes that several loops can wait on.

    A waiter reads `count`, looks at the world without awaiting, and then waits for
    `after(count)`: no change in between is lost, and none is taken from another waiter.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake every waiter."""
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def after(self, seen: int, timeout_s: float) -> bool:
        """Wait until `count` is above `seen`; False if it is not after `timeout_s`."""
        if self.count > seen:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
            return waiter.done()
        finally:
            if not waiter.done():  # a run that stands still for days would gather them
                self._waiters.remove(waiter)
