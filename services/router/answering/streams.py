"""Items that come faster than they are worked on, taken together."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from services.side_by_side import cancel

T = TypeVar("T")
_BOUND = 256


@dataclass(frozen=True)
class _End:
    error: Exception | None = None


async def batched(
    source: AsyncGenerator[T, None], pause_s: Callable[[], float]
) -> AsyncGenerator[list[T], None]:
    """Yield what `source` has made since the last batch, at least one item each time.

    Args:
        source: closed at the end, whatever ends the generator; its error comes after the items
            before it.
        pause_s: asked before every batch; how many seconds to gather more of it.
    """
    ready: asyncio.Queue[T | _End] = asyncio.Queue(_BOUND)

    async def gather() -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await ready.put(item)
        except Exception as error:  # noqa: BLE001  raised again by the reader below
            await ready.put(_End(error))
        else:
            await ready.put(_End())

    task = asyncio.create_task(gather())
    try:
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
    finally:
        await cancel(task)


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
