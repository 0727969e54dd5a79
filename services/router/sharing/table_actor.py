"""The shared table in an actor of its own, found or begun by whichever router needs it."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayActorError

from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import NAMESPACE
from services.router.config import RouterConfig
from services.router.sharing.sharing import SharedTable, SyncRequest, SyncResponse

TABLE_ACTOR = "router_table"
_TIMEOUT_S = 2.0


class _TableActor:
    def __init__(self, bound: int, expire_s: float) -> None:
        self._table = SharedTable(bound=bound, expire_s=expire_s)

    def exchange(self, request: SyncRequest) -> SyncResponse:
        return self._table.exchange(request)


class TableActorPoint:
    """Reaches the actor; when it has died, with the router that began it, begins another.

    It holds nothing that routers could not tell again, so it need not outlive anybody.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._actor: Any = None

    async def exchange(self, request: SyncRequest) -> SyncResponse:
        """See `ExchangePoint`."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(self._find)
            reference = self._actor.exchange.remote(request)
            async with asyncio.timeout(_TIMEOUT_S):
                response: SyncResponse = await reference
            return response
        except TimeoutError:
            raise NotReady("the routers' table does not answer") from None
        except (RayActorError, ConnectionError, ValueError) as error:
            self._actor = None
            raise NotReady(f"the routers' table is not up: {error}") from error

    def _find(self) -> Any:
        options = {"name": TABLE_ACTOR, "namespace": NAMESPACE, "get_if_exists": True}
        actor = ray.remote(num_cpus=0)(_TableActor).options(**options)
        return actor.remote(self._config.max_sessions, self._config.share_expire_s)
