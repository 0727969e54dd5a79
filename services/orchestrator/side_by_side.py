"""Calls side by side on one event loop."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, whatever their result."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def race(calls: Mapping[str, Coroutine[Any, Any, Any]]) -> None:
    """Run calls by name until the first one ends; cancel the others, and raise its error."""
    tasks = [asyncio.create_task(call, name=name) for name, call in calls.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel(tasks)
