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
from environments.verifiers_tools import SharedTools, check_servers
from services.protocol.run.task import Task

BEGINS_S = 240.0
"""Within which an episode makes its first call; verifiers waits for a server of tools for 180 s."""
_MOST = 100_000  # a taskset may have no end
_NO_KEY = "MILLRACE_NO_KEY"  # a variable that is not set: the relay asks for none
_HARNESS = {"id": "null", "env": {"PYTHONPATH": ""}}  # its packages are not those of this process


class Tasks(list[Any]):
    """The tasks of a taskset, in their order.

    Attributes:
        toolsets: the taskset's own servers of tools, which all episodes share.
    """

    toolsets: Sequence[Any] = ()


def load_tasks(name: str, **arguments: Any) -> Tasks:
    """The tasks of the taskset of this name, made with these arguments.

    Raises:
        InvalidInput: a server of their tools cannot be started.
    """
    loaders = import_module("verifiers.v1.utils.loaders")
    taskset = loaders.load_taskset(loaders.taskset_config_type(name)(id=name, **arguments))
    tasks = Tasks(itertools.islice(taskset, _MOST))
    tasks.toolsets = taskset.toolsets(taskset.config)
    of_tasks = {type(one): one for one in tasks}.values()
    check_servers([*tasks.toolsets, *(t for one in of_tasks for t in one.toolsets(one.config))])
    return tasks


def examples_of(tasks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """What the model is told first, and the place of each task."""
    for place, task in enumerate(tasks):
        prompt = task.data.prompt
        said = prompt if isinstance(prompt, str) else task.data.name or f"task {place}"
        yield {"prompt": [{"role": "user", "content": said}], "info": {"place": place}}


def tasks_rollout(name: str, tasks: Tasks) -> Rollout:
    """A rollout function that has an agent play one of these tasks; returns its reward.

    The agent is verifiers' harness `null`, which chats and uses the task's tools.

    Args:
        name: of the taskset, for errors.
        tasks: all of them, in their order.
    """
    agents = _Agents(name, SharedTools(tasks.toolsets))
    ending: set[asyncio.Task[float]] = set()

    async def rollout(client: AsyncOpenAI, task: Task) -> float:
        played = asyncio.create_task(agents.play(client, tasks[task.data["info"]["place"]]))
        try:
            return await asyncio.shield(played)
        except asyncio.CancelledError:
            # Its programs may take seconds to end; a process that waited for them would seem to
            # be blocked, and be ended with all other episodes.
            ending.add(played)
            played.add_done_callback(ending.discard)
            played.cancel()
            raise

    return rollout


class _Agents:
    """Has agents play tasks.

    Args:
        name: of the taskset, for errors.
        shared: tools of all episodes.
    """

    def __init__(self, name: str, shared: SharedTools) -> None:
        self._name, self._shared = name, shared
        self._library, self._relay = import_module("verifiers.v1"), Relay()

    async def play(self, client: AsyncOpenAI, task: Any) -> float:
        """The task's reward.

        Raises:
            RuntimeError: it has none.
        """
        library = self._library
        try:
            async with asyncio.timeout(BEGINS_S) as begins, self._relay.to(client, begins) as url:
                config = library.AgentConfig(
                    model="policy",
                    client=library.EvalClientConfig(base_url=url, api_key_var=_NO_KEY),
                    harness=_HARNESS,
                    runtime=library.SubprocessConfig(),
                )
                tools = await self._shared.servers()
                trace = await library.Agent(config).run(task, tools=tools)
        except TimeoutError:
            if not begins.expired():
                raise
            problem = f"no call within {BEGINS_S:g} s: neither its agent nor its tools have begun"
            raise RuntimeError(f"{self._name}: {problem}") from None
        if not trace.ok:
            raise RuntimeError(f"{self._name}: {trace.errors}")
        return float(trace.reward)


class Relay:
    """A server on loopback whose every address is that of an episode's client."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[AsyncOpenAI, asyncio.Timeout]] = {}
        self._numbers = itertools.count()
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def to(self, client: AsyncOpenAI, begins: asyncio.Timeout) -> AsyncIterator[str]:
        """A base URL for as long as the context lasts; its calls are the client's.

        Args:
            client: of the policy.
            begins: has no end any more after the first call.
        """
        host, port = await self._listening()
        number = str(next(self._numbers))
        self._clients[number] = client, begins
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
        client, begins = self._clients.get(request.match_info["number"], (None, None))
        if client is None or begins is None:
            raise web.HTTPNotFound(text="the episode is over")
        if not begins.expired():
            begins.reschedule(None)
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
