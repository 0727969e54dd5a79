"""Calls side by side on one event loop."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended, whatever their result."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def gathered(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in the order of the calls. If one fails, the others are cancelled and have ended
    before its error is raised: `asyncio.gather` leaves them running."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


@asynccontextmanager
async def running(call: Coroutine[Any, Any, Any], *, name: str) -> AsyncIterator[None]:
    """Run a call beside the block, and cancel it at the block's end."""
    task = asyncio.create_task(call, name=name)
    try:
        yield
    finally:
        await cancel(task)


async def race(calls: Mapping[str, Coroutine[Any, Any, Any]]) -> None:
    """Run calls by name until the first one ends; cancel the others, and raise its error."""
    tasks = [asyncio.create_task(call, name=name) for name, call in calls.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel(*tasks)
