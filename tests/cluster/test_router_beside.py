"""What the router does beside requests, with the real Ray and the real engines."""

import asyncio
import contextlib

import httpx
import ray

from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import NAMESPACE
from services.router.config import RouterConfig
from services.router.placement.probes import read_pressure
from services.router.sharing.sharing import TABLE_ACTOR, SyncRequest, SyncResponse, TableActorPoint

from .conftest import Cluster


def test_an_engine_shows_how_full_it_is_on_its_own_page(cluster: Cluster) -> None:
    cluster.wait_until_whole()
    for member in cluster.table().leased:
        pressure = read_pressure(httpx.get(f"{member.address}/metrics", timeout=300).text)
        assert pressure is not None
        assert 0 <= pressure.kv_usage <= 1


async def exchanged(point: TableActorPoint, router: str, *, other_than: str = "") -> SyncResponse:
    """What a table but this one answers: like a router, asked again while its process starts."""
    request = SyncRequest(
        router_id=router, counts={"a": 1}, homes={}, floors={}, table_id="", revision=0
    )
    async with asyncio.timeout(300):
        while True:
            with contextlib.suppress(NotReady):
                response = await point.exchange(request)
                if response.table_id != other_than:
                    return response


async def test_routers_find_one_table_and_begin_another_when_it_dies(cluster: Cluster) -> None:
    first, second = (TableActorPoint(RouterConfig(replicas=2)) for _ in range(2))
    before = await exchanged(first, "first")
    assert (await exchanged(second, "second")).counts == {"a": 1}
    ray.kill(ray.get_actor(TABLE_ACTOR, namespace=NAMESPACE))
    # Ray answers before the actor is dead, and calls may still reach it.
    await exchanged(first, "first", other_than=before.table_id)
    ray.kill(ray.get_actor(TABLE_ACTOR, namespace=NAMESPACE))
