"""Two routers before the replicas, and clients that know no more than a load balancer does."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from services.changes import Changes
from services.protocol.router import REPLICA_HEADER, SESSION_HEADER
from services.router.config import RouterConfig
from services.router.placement.probes import read_pressure
from services.router.sharing.sharing import SharedTable, SyncRequest, SyncResponse
from tests.chaos.answered import Answer, check_same, read
from tests.chaos.calls import serve
from tests.chaos.mixture import STOPS, Ask, asks
from tests.chaos.scene import READY_S, Scene

ROUTERS = 2
STALL_S = 3.0
"""Silence between two tokens after which a router goes on elsewhere; less than the bus waits."""

BEGUN = 3
"""Events after which an answer has begun."""

OPEN = 8
"""Calls that a replica is in the middle of: some may be over before anything happens to it."""

_POLL_S = 0.05
_CONFIG = RouterConfig(
    replicas=ROUTERS,
    connect_s=5.0,
    max_retries=30,  # on a machine that is busy with other things, silence is no rare event
    derender_s=6.0,
    first_token_s=30.0,
    between_tokens_s=STALL_S,
    lease_wait_s=READY_S,
    eject_s=0.2,
    eject_max_s=2.0,
    slow_start_s=1.0,
    probe_s=0.5,
    probe_timeout_s=3.0,
)


class Table:
    """The routers' table, which also shows what each of them has in flight."""

    def __init__(self, changes: Changes) -> None:
        self.words: dict[str, SyncRequest] = {}
        self._changes = changes
        self._table = SharedTable(bound=1000, expire_s=_CONFIG.share_expire_s)

    async def exchange(self, request: SyncRequest) -> SyncResponse:
        self.words[request.router_id] = request
        self._changes.notify()
        return self._table.exchange(request)


class Front:
    """The routers, the requests that are on their way through them, and their answers.

    Attributes:
        scene: what is behind.
        retried: calls that a client sent again because a router was gone.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self.retried = scene, 0
        self._table_path = f"{scene.folder}/table"
        self._changes = Changes()
        self._table = Table(self._changes)
        self._urls: list[str] = [""] * ROUTERS
        self._processes: list[Any] = [None] * ROUTERS
        self._halves: dict[int, str] = {}  # replicas of answers that have begun, up to their half
        self._among = slice(None)
        self._calls: list[tuple[Ask, asyncio.Task[Answer]]] = []
        self._expected: dict[int, Answer] = {}
        self._expected_of: int | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Front"]:
        """Both routers are up in between."""
        table = asyncio.create_task(serve(self._table, self._table_path))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=2 * READY_S),
        )
        try:
            for index in range(ROUTERS):
                self.start_router(index)
            yield self
        finally:
            table.cancel()
            await self._session.close()

    def start_router(self, index: int) -> None:
        """A router process on a port of its own; who comes before it is up waits."""
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            self._urls[index] = f"http://127.0.0.1:{listener.getsockname()[1]}"
            process = self.scene.start_router(listener, self._table_path, _CONFIG)
            self._processes[index] = process

    def kill_router(self, index: int) -> None:
        self._processes[index].kill()
        self._processes[index].join(READY_S)

    async def make_whole(self) -> list[str]:
        """Both routers know both replicas; the replicas' ids."""
        for index, process in enumerate(self._processes):
            if not process.is_alive():
                self.start_router(index)
        replica_ids = await self.scene.bring_back()
        await self.scene.until_served(await self._version(), replica_ids)
        await self.until_leased(len(replica_ids))
        self.retried = 0
        return replica_ids

    async def _version(self) -> int:
        newest = (await self.scene.table()).newest_version
        return await self.scene.train() if newest is None else newest

    async def until_leased(self, replicas: int) -> None:
        """Both routers know of so many replicas with a lease."""
        for url in self._urls:
            async with asyncio.timeout(READY_S):
                while await self._leased(url) != replicas:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)

    async def _leased(self, url: str) -> int:
        async with self._session.get(f"{url}/health") as response:
            return (await response.json())["leased_replicas"]

    async def begin(self, among: slice = slice(None)) -> None:
        """Send the requests, all at once."""
        self._among = among
        self._halves.clear()
        self._table.words.clear()
        calls = [(ask, asyncio.create_task(self._call(ask))) for ask in asks()[among]]
        for _, call in calls:
            call.add_done_callback(lambda _: self._changes.notify())
        self._calls += calls

    async def in_the_middle_on(self, replica_id: str) -> None:
        """Return when the replica has begun an answer, has half of it to do, and others besides.

        The routers count those: on a busy machine a client may read all of an answer at once, when
        it is over. What was over too early is asked again.
        """
        async with asyncio.timeout(READY_S):
            while not self._is_in_the_middle(replica_id):
                await self._changes.until(
                    lambda: self._is_over() or self._is_in_the_middle(replica_id), timeout_s=None
                )
                if self._is_over():
                    await self.begin(self._among)

    def _is_in_the_middle(self, replica_id: str) -> bool:
        counted = (request.counts.get(replica_id, 0) for request in self._table.words.values())
        return replica_id in self._halves.values() and sum(counted) >= OPEN and not self._is_over()

    def _is_over(self) -> bool:
        return all(call.done() for _, call in self._calls)

    async def _call(self, ask: Ask) -> Answer:
        for attempt in range(2 * ROUTERS):
            try:
                return await self._ask(self._urls[(ask.number + attempt) % ROUTERS], ask)
            except (aiohttp.ClientError, ConnectionError):
                self.retried += 1
        raise AssertionError(f"no router answers {ask}")

    async def _ask(self, url: str, ask: Ask) -> Answer:
        headers = {SESSION_HEADER: ask.session} if ask.session else {}
        async with self._session.post(url + ask.path, json=ask.body, headers=headers) as response:
            assert response.status == 200, f"{ask}: {await response.text()}"
            events = 0
            async for answer in read(ask, response):
                events += 1
                if 2 * answer.tokens > ask.body.get("max_tokens", 0):
                    self._halves.pop(ask.number, None)
                elif events == BEGUN:
                    self._halves[ask.number] = response.headers[REPLICA_HEADER]
                    self._changes.notify()
            return answer

    async def same_answers(self) -> int:
        """Wait for all answers, which are the undisturbed ones; how many were cut and went on.

        Raises:
            AssertionError: a call failed, or was answered differently.
        """
        answers = await self._answers()
        assert answers
        return sum(check_same(ask, ours, self._expected[ask.number]) for ask, ours in answers)

    async def know_the_answers(self) -> None:
        """Ask everything once while nothing happens, unless these weights have been asked."""
        version = await self._version()
        if self._expected_of != version:
            await self.begin()
            self._expected = {ask.number: answer for ask, answer in await self._answers()}
            self._expected_of = version
            choices = [choice for answer in self._expected.values() for choice in answer.choices]
            assert any(choice.calls for choice in choices)
            assert any(choice.finish in [("stop", stop) for stop in STOPS] for choice in choices)

    async def _answers(self) -> list[tuple[Ask, Answer]]:
        calls, self._calls = self._calls, []
        answers = await asyncio.gather(*(call for _, call in calls))
        for answer in answers:
            answer.check()
        return [(ask, answer) for (ask, _), answer in zip(calls, answers, strict=True)]

    async def stop(self) -> None:
        """Cut off what a failed test has left."""
        for _, call in self._calls:
            call.cancel()
        await asyncio.gather(*(call for _, call in self._calls), return_exceptions=True)
        self._calls = []

    async def until_idle(self) -> None:
        """No router counts anything in flight, and no engine runs or queues anything."""
        self._table.words.clear()
        assert await self._changes.until(
            lambda: sum(not request.counts for request in self._table.words.values()) == ROUTERS,
            timeout_s=READY_S,
        ), self._table.words
        for member in (await self.scene.table()).leased:
            async with asyncio.timeout(READY_S):
                while not await self._engine_is_idle(member.address):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)

    async def _engine_is_idle(self, address: str) -> bool:
        async with self._session.get(f"{address}/metrics") as response:
            pressure = read_pressure(await response.text())
        return pressure is not None and not pressure.running + pressure.waiting
