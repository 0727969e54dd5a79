"""Environments that speak OpenEnv: servers elsewhere, or servers that are started for a run.

The file that a run file names as its environment has one line for it, with the servers' addresses

    rollout = openenv_rollout(["http://node-1:8000", "http://node-2:8000"], act={"message": str})

or with the command that starts one:

    rollout = openenv_rollout(
        started("python -m echo_env.server.app --port {port}", servers=4), act={"message": str}
    )

Its tasks are those of `python -m environments.gymnasium`: each begins an episode from a seed.
"""

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any

import httpx
from openai import AsyncOpenAI

from environments.turns import MAX_TURNS, Rollout, take_turns
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.run.task import Task

Act = Mapping[str, Callable[[str], Any]] | Callable[[str], Mapping[str, Any]]
"""The one field of an action and how an answer is read as its value, or a function that makes the
whole action; both raise ValueError for an answer that means none."""
_CALL_S, _START_S, _POLL_S, _HEALTH_S = 60.0, 120.0, 0.2, 5.0
_NOT_SHOWN = {"done", "reward", "metadata"}


class Server:
    """A server that is there, or one that `command` starts and starts again when it has died.

    Args:
        url: its address, `http://` or `ws://`.
        command: starts one.
        sessions: episodes at a time; OpenEnv's own default is one.
    """

    def __init__(self, url: str = "", command: Sequence[str] = (), *, sessions: int = 1) -> None:
        self.url, self._command, self.sessions = url.rstrip("/"), command, sessions
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = asyncio.Lock()

    async def ready(self) -> str:
        """Its address, once it is healthy.

        Raises:
            RuntimeError: it is not, in time.
        """
        async with self._lock:
            # Connections of a process that dies break before it has ended.
            for may_be_dying in (not self._has_ended(), False):
                if self._has_ended():
                    self._start()
                if await self._becomes_healthy():
                    return self.url
                if not may_be_dying:
                    break
            raise RuntimeError(f"{self.name} ended: {self._status()}")

    @property
    def name(self) -> str:
        """Its address, or the command that starts it."""
        return shlex.join(self._command) or self.url

    def end(self) -> None:
        """End the process that was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # In the process group of the environment, which ends as one.
        self._process = subprocess.Popen(
            [word.replace("{port}", str(port)) for word in self._command],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PORT": str(port)},
        )

    def _status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def _has_ended(self) -> bool:
        """Or has not begun, where it must be started."""
        return bool(self._command) and (self._process is None or self._status() is not None)

    async def _becomes_healthy(self) -> bool:
        """Wait until it is; returns False if its process ended.

        Raises:
            RuntimeError: neither happens in time.
        """
        deadline = time.monotonic() + (_START_S if self._command else _HEALTH_S)
        health = f"{re.sub('^ws', 'http', self.url)}/health"
        async with httpx.AsyncClient(trust_env=False, timeout=_HEALTH_S) as http:
            while time.monotonic() < deadline:
                if self._has_ended():
                    return False
                with suppress(httpx.HTTPError):
                    if (await http.get(health)).status_code == httpx.codes.OK:
                        return True
                await asyncio.sleep(_POLL_S)
        raise RuntimeError(f"the OpenEnv server {self.url} is not healthy")


def started(command: str, *, servers: int = 1, sessions: int = 1) -> list[Server]:
    """Servers that the environment's process starts when it needs them, and ends with itself.

    Args:
        command: of one; `{port}` in it, and the variable `PORT`, are where it must listen.
        servers: how many.
        sessions: episodes at a time of each.
    """
    words = shlex.split(command)
    return [Server(command=words, sessions=sessions) for _ in range(servers)]


def openenv_rollout(
    servers: Sequence[str | Server],
    act: Act,
    *,
    show: Callable[[Mapping[str, Any]], str] | None = None,
    score: Callable[[Mapping[str, Any]], float] | None = None,
    max_turns: int = MAX_TURNS,
    call_s: float = _CALL_S,
) -> Rollout:
    """A rollout function that plays episodes on the servers; returns the sum of their rewards.

    Every reset gets the task's `data`. An observation is the model's next message. An answer that
    means no action is answered by why, and counts as a turn. An error of a server is an error of
    the episode.

    Args:
        servers: addresses, or those of `started`.
        act: from an answer to an action, see `Act`.
        show: an observation in words; None: its only field, or all of them as JSON.
        score: the episode's reward, from the environment's state (`state()`) at its end, in place
            of the sum.
        max_turns: answers of the model, at most.
        call_s: longest reset or step, seconds.

    Raises:
        InvalidInput: the package `openenv-core` is not there, or too old.
    """
    client = _client(servers)
    places = [one if isinstance(one, Server) else Server(one) for one in servers]
    pool = Pool(places)
    action, words = _reader(act), show or _words

    async def rollout(policy: AsyncOpenAI, task: Task) -> float:
        async with pool.place() as url, client(url, message_timeout_s=call_s) as environment:
            seen = await environment.reset(**task.data)
            rewards = [float(seen.reward or 0.0)]

            async def step(chosen: Mapping[str, Any]) -> tuple[str, bool]:
                after = await environment.step(dict(chosen))
                rewards.append(float(after.reward or 0.0))
                return words(after.observation), after.done

            if not seen.done:
                await take_turns(policy, task, words(seen.observation), action, step, max_turns)
            if score is not None:
                return float(score(await environment.state()))
            return reward_sum(rewards)

    return rollout


def _client(servers: Sequence[str | Server]) -> Any:
    """The package's own client for actions and observations as JSON."""
    try:
        client = import_module("openenv.core.generic_client").GenericEnvClient
    except ImportError:
        client = None
    if not hasattr(client, "__aenter__"):  # before 0.2.2 there is none, or it blocks
        names = [one if isinstance(one, str) else one.name for one in servers]
        raise InvalidInput("openenv environment", names, "`pip install 'openenv-core>=0.2.2'`.")
    return client


class Pool:
    """The servers of an environment, each with so many episodes at a time as it takes."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._free: asyncio.Queue[Server] = asyncio.Queue()
        for turn in range(max((server.sessions for server in servers), default=0)):
            for server in servers:  # spread over all
                if turn < server.sessions:
                    self._free.put_nowait(server)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[str]:
        """A server of one's own, or one's share of it, for as long as the context lasts."""
        server = await self._free.get()
        try:
            yield await server.ready()
        finally:
            self._free.put_nowait(server)


def _reader(act: Act) -> Callable[[str], Mapping[str, Any]]:
    if not isinstance(act, Mapping):
        return act
    ((field, read),) = act.items()
    return lambda said: {field: read(said)}


def _words(observation: Mapping[str, Any]) -> str:
    shown = {name: one for name, one in observation.items() if name not in _NOT_SHOWN}
    texts = list(shown.values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else json.dumps(shown)
