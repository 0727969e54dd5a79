"""A replica that the bus trusts and that answers every request with an error, at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from services.changes import Changes
from services.protocol.errors import NotReady
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.weight_bus import Member
from tests.chaos.calls import BusOverSocket


class Impostor:
    """Looks idle because nothing stays with it.

    Attributes:
        replica_id: its name in the member table.
        refused: requests that it failed.
    """

    replica_id = "r1000"

    def __init__(self) -> None:
        self.refused = 0
        self._changes = Changes()

    @asynccontextmanager
    async def opened(self, bus: BusOverSocket, like: Member) -> AsyncIterator["Impostor"]:
        """It is a member in between, at the version of the replica `like`."""
        app = web.Application()
        app.router.add_get("/health", _fine)
        app.router.add_post("/{path:.*}", self._refuse)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        hello = ReplicaHello(
            replica_id=self.replica_id,
            address=f"http://127.0.0.1:{runner.addresses[0][1]}",
            committed_version=like.committed_version,
            model=like.model,
            max_model_len=like.max_model_len,
            pid=0,
            commit_timeout_s=1.0,
        )
        await bus.register_replica(hello)
        heart = asyncio.create_task(self._live(bus))
        try:
            yield self
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
            await bus.leave(self.replica_id)
            await runner.cleanup()

    async def has_refused(self, requests: int, timeout_s: float) -> bool:
        """Wait until so many have failed here."""
        return await self._changes.until(lambda: self.refused >= requests, timeout_s=timeout_s)

    async def _live(self, bus: BusOverSocket) -> None:
        while True:
            with suppress(NotReady):
                await bus.next_orders(self.replica_id, 0, 1.0)

    async def _refuse(self, _: web.Request) -> web.Response:
        self.refused += 1
        self._changes.notify()
        return web.json_response({"error": {"message": "broken on purpose"}}, status=500)


async def _fine(_: web.Request) -> web.Response:
    return web.Response()
