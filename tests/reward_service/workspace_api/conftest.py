"""Replicas with real workspaces behind their HTTP applications, without Ray."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest_asyncio

from services.access.access_control import KEY_NAME
from services.protocol.errors import NotReady
from services.protocol.reward.reward_service import Score, ScoreJob
from services.reward_service.workspace_api.app import replica_app
from services.reward_service.workspace_api.forwarding import Peers
from services.reward_service.workspace_api.peer_listener import PREFIX, PeerListener
from services.reward_service.workspace_api.replica_table import ReplicaTable
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces

FAST = {
    "start_s": 300.0,
    "starts_per_s": 1000.0,
    "starts_at_once": 1000,
    "use_bubblewrap": False,
    "shared_user": True,
}


class Store:
    """A key-value store; `away` as where the cluster's head does not answer."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.away = False

    async def write(self, name: str, text: str) -> None:
        self._check()
        self.texts[name] = text

    async def erase(self, name: str) -> None:
        self._check()
        self.texts.pop(name, None)

    async def read(self) -> dict[str, str]:
        self._check()
        return dict(self.texts)

    def _check(self) -> None:
        if self.away:
            raise NotReady("the cluster's head does not answer")


@dataclass
class FakeReward:
    """A reward service that accepts `right`, and may be away."""

    right: str = ""
    away: bool = False
    jobs: list[ScoreJob] = field(default_factory=list)

    async def sandboxes(self) -> int:
        return 1

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        if self.away:
            raise NotReady("reward_service is not up")
        self.jobs += jobs
        return [Score.right_or_wrong(job.completion == self.right, "no") for job in jobs]


@dataclass
class Replica:
    """One replica as Serve would run it.

    Attributes:
        http: calls of a client, whose key's name is in the header `x-key`.
        die: close its port as the end of its process does.
    """

    name: str
    http: httpx.AsyncClient
    workspaces: Workspaces
    reward: FakeReward
    die: Callable[[], Any]


class _Keyed:
    """In place of the access control: the caller's name is what the header says."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = dict(scope["headers"]).get(b"x-key", b"").decode()
        await self.app({**scope, KEY_NAME: name} if name else scope, receive, send)


class Cluster:
    """Replicas that share a store."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.store, self.running = Store(), set[str]()
        self._stack = stack

    async def start(self, **config: Any) -> Replica:
        settings = WorkspacesConfig.model_validate(FAST | config)
        name = secrets.token_hex(4)
        self.running.add(name)
        workspaces, reward = Workspaces(settings, name), FakeReward()
        await workspaces.start()
        listener = PeerListener(name, "127.0.0.1")
        peers = Peers(
            ReplicaTable(listener.address, self.store, self._running), connect_s=settings.connect_s
        )
        app = replica_app(workspaces, settings, reward, peers=peers, listener=listener)
        await self._stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(_Keyed(app), root_path=PREFIX)
        http = httpx.AsyncClient(transport=transport, base_url="http://x", timeout=300)
        await self._stack.enter_async_context(http)
        return Replica(name, http, workspaces, reward, listener.stop)

    async def _running(self) -> set[str]:
        return self.running


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """No replica yet; all that are started end with the block."""
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica() -> AsyncIterator[Replica]:
    """One replica for the tests of a module."""
    async with cluster() as made:
        yield await made.start(max_request_mb=4, grade_run_s=20.0)


async def opened(http: httpx.AsyncClient, **spec: Any) -> str:
    """The path of a new workspace."""
    answer = await http.post(PREFIX, json=spec)
    assert answer.status_code == 201, answer.text
    return f"{PREFIX}/{answer.json()['id']}"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110  (announced to nobody)
            await asyncio.sleep(0.05)
