"""vLLM's application as a replica serves it, around a real engine with real weights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai

from services.rollout_server.config import RolloutServerConfig

from .served import Served, serve

MODEL = "policy"


class HttpServed:
    """A server's address and clients for it, beside the engine behind it."""

    def __init__(self, served: Served, url: str, http: aiohttp.ClientSession) -> None:
        self.served, self.url, self.http = served, url, http
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)

    @property
    def open_requests(self) -> int:
        """Requests that the engine has not finished."""
        unfinished: int = self.served.engine.output_processor.get_num_unfinished_requests()
        return unfinished

    async def until_open_requests(self, number: int) -> None:
        """Return as soon as the engine has so many; looks every millisecond."""
        async with asyncio.timeout(300):
            while True:
                if self.open_requests == number:
                    return
                await asyncio.sleep(0.001)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.http.post(self.url + path, json=body) as answer:
            content: dict[str, Any] = await answer.json()
            assert answer.status == 200, content
            return content


@asynccontextmanager
async def serve_http(folder: Path, **settings: Any) -> AsyncIterator[HttpServed]:
    """`serve`, with the HTTP server of a replica on a port of its own."""
    async with serve(folder, **settings) as served:
        from services.rollout_server.engine.engine_arguments import server_arguments
        from services.rollout_server.http.http_server import HttpServer

        server = HttpServer("127.0.0.1")
        await server.start(
            served.engine, server_arguments(RolloutServerConfig(model=str(folder), **settings))
        )
        async with aiohttp.ClientSession() as http:
            one = HttpServed(served, f"http://127.0.0.1:{server.port}", http)
            try:
                yield one
            finally:
                await one.client.close()
                await server.stop()
