"""Asynchronous generators that are drained in the background: several as one, or in batches."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from services.side_by_side import cancel

T = TypeVar("T")
_BOUND = 256


@dataclass(frozen=True)
class _End:
    """A source has ended."""

    error: Exception | None = None


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all sources as they come.

    The first error of a source ends all. However the generator ends, no task and no open source
    is left behind.
    """
    async with _drained(sources) as ready:
        open_sources = len(sources)
        while open_sources:
            item = await ready.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                open_sources -= 1


async def batched(
    source: AsyncGenerator[T, None], pause_s: Callable[[], float]
) -> AsyncGenerator[list[T], None]:
    """Yield what `source` has made since the last batch, at least one item each time.

    Args:
        source: closed however the generator ends; its error comes after the items before it.
        pause_s: asked before every batch; how many seconds to gather more of it.
    """
    async with _drained([source]) as ready:
        end: _End | None = None
        while end is None:
            got = [await ready.get()]
            await asyncio.sleep(0 if isinstance(got[0], _End) else pause_s())
            while not ready.empty():
                got.append(ready.get_nowait())
            last = got[-1]
            end = last if isinstance(last, _End) else None
            if items := [item for item in got if not isinstance(item, _End)]:
                yield items
        if end.error is not None:
            raise end.error


@asynccontextmanager
async def _drained(
    sources: Sequence[AsyncGenerator[T, None]],
) -> AsyncIterator["asyncio.Queue[T | _End]"]:
    """The items of all sources as they come, and the end of each."""
    ready: asyncio.Queue[T | _End] = asyncio.Queue(_BOUND)

    async def drain(source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await ready.put(item)
        except Exception as error:  # noqa: BLE001  raised again by the reader
            await ready.put(_End(error))
        else:
            await ready.put(_End())

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    try:
        yield ready
    finally:
        await cancel(*tasks)
