"""An event loop whose time is virtual: it never waits, it jumps to what happens next.

The code under test runs as it is. `loop.time()` and `time.monotonic()` both tell virtual
seconds, so that deadlines, pauses and durations fit together; threads are not used, so that
the same seed gives the same order of events every time.
"""

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class _Jump(selectors.DefaultSelector):
    """Instead of waiting for files, moves the clock of its loop."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set")
        self.loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, seconds since its start."""

    def __init__(self) -> None:
        selector = _Jump()
        self.now = 0.0
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> Any:
        """Run it here and now: it takes no virtual time, and threads have no order."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  it belongs to whoever awaits the result
            done.set_exception(error)
        return asyncio.wrap_future(done, loop=self)


def run_virtually(work: Callable[[], Coroutine[Any, Any, T]], *, limit_s: float = 1e7) -> T:
    """Run `work()` to its end on a new loop.

    Raises:
        TimeoutError: it is not done after so many virtual seconds, for example because every
            task waits for another.
    """

    async def bounded() -> T:
        async with asyncio.timeout(limit_s):
            return await work()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        with mock.patch("time.monotonic", loop.time):
            return runner.run(bounded())
