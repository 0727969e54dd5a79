"""Retries of calls to peers that are starting, restarting or gone."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from services.protocol.errors import NotReady

T = TypeVar("T")


def doubling(first_s: float, longest_s: float) -> Iterator[float]:
    """Pauses without end that double up to the longest one, seconds."""
    while True:
        yield first_s
        first_s = min(2 * first_s, longest_s)


async def retrying(
    call: Callable[[], Awaitable[T]],
    *,
    pauses: Iterable[float],
    on: type[Exception] | tuple[type[Exception], ...] = NotReady,
    timeout_s: float = math.inf,
    failed: Callable[[Any, float], None] | None = None,
) -> T:
    """Call until it succeeds, with a pause after each failure.

    Args:
        call: makes the call; cancelling it is the caller's part.
        pauses: between calls, seconds; the last one is repeated.
        on: the errors that are retried.
        timeout_s: no call begins later than this.
        failed: called with every error that is retried and the pause after it, also with the
            last one; it may raise to end the retries.

    Raises:
        Exception: the last error of `call`, when no further call would begin in time; and at
            once an error that is not retried.
    """
    deadline, pause_s, rest = time.monotonic() + timeout_s, 0.0, iter(pauses)
    while True:
        try:
            return await call()
        except on as error:
            pause_s = next(rest, pause_s)
            if failed is not None:
                failed(error, pause_s)
            if time.monotonic() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s)
