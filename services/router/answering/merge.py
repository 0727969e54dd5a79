"""Several asynchronous generators as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from services.side_by_side import cancel

T = TypeVar("T")
_BOUND = 64


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all sources as they come.

    The first error of a source ends all. Whatever ends the generator, no task and no open
    source is left behind.
    """
    queue: asyncio.Queue[tuple[bool, T | BaseException | None]] = asyncio.Queue(_BOUND)

    async def drain(source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await queue.put((True, item))
        except Exception as error:  # noqa: BLE001  raised again by the reader below
            await queue.put((False, error))
        else:
            await queue.put((False, None))

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    try:
        open_sources = len(tasks)
        while open_sources:
            is_item, item = await queue.get()
            if is_item:
                yield item  # type: ignore[misc]
            elif isinstance(item, BaseException):
                raise item
            else:
                open_sources -= 1
    finally:
        await cancel(*tasks)
