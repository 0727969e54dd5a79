"""What the router does beside requests, with the real Ray and the real engines."""

import asyncio
import contextlib

import httpx
import ray

from services.protocol.errors import NotReady
from services.protocol.weight_bus import NAMESPACE
from services.router.config import RouterConfig
from services.router.placement.probes import read_pressure
from services.router.placement.shared_table import SyncRequest
from services.router.placement.table_actor import TABLE_ACTOR, TableActorPoint

from .conftest import Cluster


def test_an_engine_shows_how_full_it_is_on_its_own_page(cluster: Cluster) -> None:
    cluster.wait_until_whole()
    for member in cluster.table().leased:
        pressure = read_pressure(httpx.get(f"{member.address}/metrics", timeout=10).text)
        assert pressure is not None
        assert 0 <= pressure.kv_usage <= 1


async def test_routers_find_one_table_and_begin_another_when_it_dies(cluster: Cluster) -> None:
    first, second = (TableActorPoint(RouterConfig(replicas=2)) for _ in range(2))

    def request(name: str) -> SyncRequest:
        return SyncRequest(
            router_id=name, counts={"a": 1}, homes={}, floors={}, table_id="", revision=0
        )

    before = await first.exchange(request("first"))
    assert (await second.exchange(request("second"))).counts == {"a": 1}
    ray.kill(ray.get_actor(TABLE_ACTOR, namespace=NAMESPACE))
    after = before  # Ray answers before the actor is dead, and calls may still reach it
    async with asyncio.timeout(30):
        while after.table_id == before.table_id:
            with contextlib.suppress(NotReady):
                after = await first.exchange(request("first"))
    ray.kill(ray.get_actor(TABLE_ACTOR, namespace=NAMESPACE))
