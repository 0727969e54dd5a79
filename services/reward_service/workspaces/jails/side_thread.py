"""Threads for looks at processes and folders, which take milliseconds where there are many."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_THREADS = 4


def _new_threads() -> None:
    global _threads
    _threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="workspaces")


_threads: ThreadPoolExecutor
_new_threads()
os.register_at_fork(after_in_child=_new_threads)  # which has no threads but its own


async def off_loop(look: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a look, made beside the event loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, lambda: look(*args, **kwargs))
