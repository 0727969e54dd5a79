"""A client that goes away: how long the engine goes on for nobody."""

import asyncio
import json
import time
from typing import Any

import pytest
import pytest_asyncio

from .http_served import MODEL, HttpServed

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}]}),
    "completions": ("/v1/completions", {"prompt": "abc"}),
    "tokens": ("/inference/v1/generate", {"token_ids": [40, 50, 60]}),
}


def body(path: str, *, stream: bool) -> bytes:
    asked = PATHS[path][1]
    limits: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}
    if path == "tokens":
        limits = {"sampling_params": limits}
    return json.dumps(asked | limits | {"model": MODEL, "stream": stream}).encode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_goes_away_ends_its_request_in_the_engine(
    app: HttpServed, whole_s: float, path: str, stream: bool
) -> None:
    await app.until_open_requests(0)
    host, port = app.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = body(path, stream=stream)
    head = (
        f"POST {PATHS[path][0]} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await app.until_open_requests(1)
    if stream:
        assert b"200 OK" in await reader.readline()
        await reader.readuntil(b"data: ")
    before = time.perf_counter()
    writer.close()
    await app.until_open_requests(0)
    took_s = time.perf_counter() - before
    print(f"{path}, {'stream' if stream else 'whole'}: {1000 * took_s:.1f} ms")
    assert took_s < whole_s
    first_s, idle_s = await drained(app), await drained(app)
    print(f"engine core: {1000 * first_s:.1f} ms to drain, {1000 * idle_s:.1f} ms when idle")
    assert first_s - idle_s < whole_s, "its process went on with the request"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole_s(app: HttpServed) -> float:
    """Seconds for all of the tokens here and now: a request that is ended takes a fraction."""
    asked = json.loads(body("completions", stream=False))
    started = time.perf_counter()
    await app.post(PATHS["completions"][0], asked)
    return (time.perf_counter() - started) / 2


async def drained(app: HttpServed) -> float:
    """Seconds until the engine core's own scheduler has no request left."""
    started = time.perf_counter()
    await app.served.engine.pause_generation(mode="wait", clear_cache=False)
    took_s = time.perf_counter() - started
    await app.served.engine.resume_generation()
    return took_s
