"""vLLM's own OpenAI-compatible application, served beside the engine in the same event loop.

vLLM's application also has paths by which a client ends the requests of others or changes the
engine, and many more in its development mode. Control goes through the weight bus
(`replica_control.py`), so every path that is not named here is taken out.
"""

import asyncio
import socket
from argparse import Namespace
from typing import Any

import uvicorn
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import NoSignalServer

from services.rollout_server.http.render_and_generate import RenderAndGenerate

_BACKLOG = 2048
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01

PUBLIC = frozenset(
    {
        "/health",
        "/ping",
        "/version",
        "/load",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/inference/v1/generate",
    }
)
API = "/v1/"
"""OpenAI's and Anthropic's interfaces, and what renders for them."""


class HttpServer:
    """One uvicorn server.

    Attributes:
        port: the port, known before the server runs.
    """

    def __init__(self, bind_host: str, port: int = 0) -> None:
        """Take a port of `bind_host`; 0 leaves it to the kernel which.

        Raises:
            OSError: the host is not an address of this machine, or the port is taken.
        """
        # asyncio turns Nagle's delay of 40 ms off only where the protocol is named, which
        # socket.create_server does not do.
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((bind_host, port))
        self._socket.listen(_BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, engine: Any, arguments: Namespace) -> None:
        """Build vLLM's application around `engine` and serve it.

        Raises:
            TimeoutError: the server did not come up.
        """
        tasks = await engine.get_supported_tasks()
        app = build_app(arguments, tasks, engine.model_config)
        keep_public_routes(app)
        await init_app_state(engine, app.state, arguments, tasks)
        config = uvicorn.Config(RenderAndGenerate(app), log_config=None, access_log=False)
        self._server = NoSignalServer(config)
        # vLLM's error responses look for the server here.
        app.state.server = self._server
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not self._server.started:
                if self._task.done():
                    await self._task
                    raise RuntimeError("the HTTP server ended while starting")
                await asyncio.sleep(_POLL_S)

    @property
    def running(self) -> bool:
        """Requests are accepted."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Close connections and the port; open requests are cut after a short grace."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            _, pending = await asyncio.wait({self._task}, timeout=_STOP_TIMEOUT_S)
            for task in pending:
                self._server.force_exit = True
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


def keep_public_routes(app: Any) -> None:
    """Take every other route out of a FastAPI application."""
    routes = app.router.routes
    app.router.routes = [one for one in routes if one.path in PUBLIC or one.path.startswith(API)]
    app.openapi_schema = None  # it would go on describing them
