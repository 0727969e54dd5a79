"""Tasksets of the package `verifiers` from 0.3 on, played by the policy that is being trained.

Their agents are programs that get a URL: that of a relay on loopback, by which each of their calls
becomes one of the environment's client: recorded, with the run's sampling.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from aiohttp import web
from openai import APIStatusError, AsyncOpenAI

from environments.turns import Rollout
from services.protocol.run.task import Task

_MOST = 100_000  # a taskset may have no end
_NO_KEY = "MILLRACE_NO_KEY"  # a variable that is not set: the relay asks for none


def load_tasks(name: str, **arguments: Any) -> Sequence[Any]:
    """The tasks of the taskset of this name, made with these arguments."""
    loaders = import_module("verifiers.v1.utils.loaders")
    config = loaders.taskset_config_type(name)(id=name, **arguments)
    return list(itertools.islice(loaders.load_taskset(config), _MOST))


def examples_of(tasks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """What the model is told first, and the place of each task."""
    for place, task in enumerate(tasks):
        prompt = task.data.prompt
        said = prompt if isinstance(prompt, str) else task.data.name or f"task {place}"
        yield {"prompt": [{"role": "user", "content": said}], "info": {"place": place}}


def tasks_rollout(name: str, tasks: Sequence[Any]) -> Rollout:
    """A rollout function that has an agent play one of these tasks; returns its reward.

    The agent is verifiers' harness `null`, which chats.

    Args:
        name: of the taskset, for errors.
        tasks: all of them, in their order.
    """
    library, relay = import_module("verifiers.v1"), Relay()

    async def rollout(client: AsyncOpenAI, task: Task) -> float:
        async with relay.to(client) as url:
            config = library.AgentConfig(
                model="policy",
                client=library.EvalClientConfig(base_url=url, api_key_var=_NO_KEY),
                harness={"id": "null"},
                runtime=library.SubprocessConfig(),
            )
            trace = await library.Agent(config).run(tasks[task.data["info"]["place"]])
        if not trace.ok:
            raise RuntimeError(f"{name}: {trace.errors}")
        return float(trace.reward)

    return rollout


class Relay:
    """A server on loopback whose every address is that of an episode's client."""

    def __init__(self) -> None:
        self._clients: dict[str, AsyncOpenAI] = {}
        self._numbers = itertools.count()
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def to(self, client: AsyncOpenAI) -> AsyncIterator[str]:
        """A base URL for as long as the context lasts; its calls are the client's."""
        host, port = await self._listening()
        number = str(next(self._numbers))
        self._clients[number] = client
        try:
            yield f"http://{host}:{port}/{number}/v1"
        finally:
            del self._clients[number]

    async def _listening(self) -> tuple[str, int]:
        """Its address, from the first call on; its event loop ends with the process."""
        async with self._starting:
            if self._runner is None:
                app = web.Application(client_max_size=1 << 30)
                app.router.add_post("/{number}/v1/chat/completions", self._call)
                runner = web.AppRunner(app, access_log=None)
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self._runner = runner
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def _call(self, request: web.Request) -> web.StreamResponse:
        """Pass an answer on as it comes, in whole or as a stream."""
        client = self._clients.get(request.match_info["number"])
        if client is None:
            raise web.HTTPNotFound(text="the episode is over")
        create = client.chat.completions.with_streaming_response.create
        try:
            body = await request.json()
            async with create(model="policy", messages=[], extra_body=body) as answer:
                kind = answer.headers.get("content-type", "application/json")
                response = web.StreamResponse(headers={"content-type": kind})
                await response.prepare(request)
                async for part in answer.iter_bytes():
                    await response.write(part)
                return response
        except APIStatusError as error:
            return web.Response(status=error.status_code, text=error.response.text)
