"""Items that come faster than they are worked on, taken together."""

import asyncio
from collections.abc import AsyncGenerator, Callable
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
