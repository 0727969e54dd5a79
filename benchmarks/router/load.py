"""The clients of `benchmarks.router.overhead`: short chats and streams, so many at a time."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

MESSAGES = [{"role": "user", "content": "larger of a and 7, times c"}]
_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=60)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests that clients send.

    Attributes:
        name: key in results.
        concurrency: requests open at once.
        requests: in all.
        tokens: in each answer.
        stream: whether the client streams.
    """

    name: str
    concurrency: int
    requests: int
    tokens: int
    stream: bool


@dataclass(kw_only=True)
class Outcome:
    """Times of a load's answers in seconds, and its errors."""

    wall_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Percentiles in milliseconds, and the number of errors."""
        found = {"errors": float(len(self.errors))}
        for name in ("latencies", "first", "gaps"):
            values = sorted(getattr(self, name))
            if len(values) > 1:
                found[f"{name}_p50_ms"] = 1000 * statistics.median(values)
                found[f"{name}_p99_ms"] = 1000 * values[int(0.99 * (len(values) - 1))]
        return found


async def put(load: Load, urls: Sequence[str], model: str) -> Outcome:
    """Put the load on servers in turn and wait until all is answered."""
    outcome, numbers = Outcome(), count()
    body = {"model": model, "messages": MESSAGES, "max_tokens": load.tokens, "ignore_eos": True}
    if load.stream:
        body["stream"] = True

    async def client(session: aiohttp.ClientSession) -> None:
        while (number := next(numbers)) < load.requests:
            url = f"{urls[number % len(urls)]}/v1/chat/completions"
            try:
                await _one(session, url, body, load, outcome)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                outcome.errors.append(repr(error))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
        began = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(load.concurrency)))
        outcome.wall_s = time.perf_counter() - began
    return outcome


async def _one(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], load: Load, outcome: Outcome
) -> None:
    began = time.perf_counter()
    async with session.post(url, json=body) as response:
        if response.status != 200:
            outcome.errors.append(f"{response.status} {(await response.text())[:200]}")
        elif load.stream:
            await _follow(response, load, outcome, began)
        else:
            await response.read()
            outcome.latencies.append(time.perf_counter() - began)


async def _follow(
    response: aiohttp.ClientResponse, load: Load, outcome: Outcome, began: float
) -> None:
    first, tail = 0.0, b""
    while data := await response.content.readany():
        first = first or time.perf_counter()
        tail = (tail + data)[-2048:]
    ended = time.perf_counter()
    # Servers put tokens that come together into one event, so events are not counted.
    if b'"length"' not in tail or not tail.endswith(b"data: [DONE]\n\n"):
        outcome.errors.append(f"a stream ended with {tail[-200:]!r}")
        return
    outcome.latencies.append(ended - began)
    outcome.first.append(first - began)
    if load.tokens > 1:
        outcome.gaps.append((ended - first) / (load.tokens - 1))
