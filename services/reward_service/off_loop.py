"""Work on what an answer wrote, kept off the event loop where there is much of it."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_AT_ONCE = 1 << 15
"""Bytes or characters that are looked at on the loop: linear work on them takes a few milliseconds,
and less than a thread's turn costs for the most."""


def _new_thread() -> None:
    global _thread
    _thread = ThreadPoolExecutor(1, thread_name_prefix="answers")


_thread: ThreadPoolExecutor
"""One: the interpreter runs one thread at a time, so more would only keep the loop waiting."""
_new_thread()
os.register_at_fork(after_in_child=_new_thread)  # which has no threads but its own


class Turns:
    """Gives the rest of the loop a turn now and then, during much work in small pieces."""

    def __init__(self) -> None:
        self._size = 0

    async def before(self, size: int) -> None:
        """Before work on so many bytes or characters."""
        self._size += size
        if self._size > _AT_ONCE:
            self._size = 0
            await asyncio.sleep(0)


async def off_loop(size: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of work on so many bytes or characters, which must take time linear in them.

    A caller that is cancelled leaves the work to end by itself.
    """
    if size <= _AT_ONCE:
        return work(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, lambda: work(*args, **kwargs))
