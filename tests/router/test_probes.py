"""What the router sees of replicas without sending them requests."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from services.router.config import RouterConfig
from services.router.placement.health import ReplicaHealth
from services.router.placement.probes import read_pressure
from services.router.placement.reservation import ReservationRequest

QUICK = {"probe_s": 0.01, "eject_after": 2, "eject_s": 30.0, "eject_max_s": 60.0}


def _chat(cluster, number):
    """Each begins differently, so that nothing but health decides where it goes."""
    ask = [{"role": "user", "content": f"hello {number}"}]
    return cluster.client.chat.completions.create(model="test-model", messages=ask)


async def _until(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110  these conditions have no event
            await asyncio.sleep(0.005)


async def _page(text, status=200):
    """A replica's address of which every page is this one."""

    async def answer(_):
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_get("/{path}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"


async def test_a_dead_replica_is_found_without_traffic_and_tried_again_when_it_answers(cluster):
    """Its lease still holds; all the same no request goes there, until it is back."""
    await cluster.start(**QUICK)
    health = cluster.reservations.chooser.health
    dead, alive = cluster.replicas
    await dead.runner.cleanup()
    await _until(lambda: health("replica-0").ejected)
    assert not health("replica-1").ejected
    for number in range(4):
        await _chat(cluster, number)
    assert (len(dead.bodies), len(alive.bodies)) == (0, 4)
    await dead.start()
    await cluster.bus.put(dead.member())
    # Far sooner than after the pause of 30 s: what failed was only the way there.
    await _until(
        lambda: (
            health("replica-0").next_chance is not None
            and health("replica-0").admits(asyncio.get_running_loop().time())
        )
    )
    for number in range(20):
        await _chat(cluster, number)
    assert dead.bodies
    assert not health("replica-0").ejected


async def test_an_engine_that_is_dead_behind_a_living_server_is_ejected(cluster):
    await cluster.start(**QUICK)
    runner, address = await _page("the engine is dead", status=503)
    await cluster.bus.put(replace(cluster.replicas[1].member(), address=address))
    await _until(lambda: cluster.reservations.chooser.health("replica-1").ejected)
    await runner.cleanup()


async def test_a_replica_that_does_not_answer_delays_no_look_at_another(cluster):
    await cluster.start(**QUICK, probe_timeout_s=60.0)

    async def nothing(*_):
        await asyncio.Event().wait()

    frozen = await asyncio.start_server(nothing, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{frozen.sockets[0].getsockname()[1]}"
    await cluster.bus.put(replace(cluster.replicas[0].member(), address=address))
    await cluster.replicas[1].runner.cleanup()
    await _until(lambda: cluster.reservations.chooser.health("replica-1").ejected)
    assert not cluster.reservations.chooser.health("replica-0").ejected
    frozen.close()


def test_answering_brings_nobody_back_who_answers_and_does_not_serve():
    """What fails requests and is healthy by its own account waits like before."""
    health = ReplicaHealth(RouterConfig(eject_after=1, eject_s=5.0))
    health.failed(0.0)
    assert not health.reached(1.0)
    assert health.next_chance == 5.0


METRICS = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 30.0
vllm:num_requests_running{engine="1",model_name="m"} 20.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 100.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
"""


def test_pressure_is_that_of_all_engines_of_a_replica():
    pressure = read_pressure(METRICS)
    assert pressure is not None
    assert (pressure.running, pressure.waiting, pressure.kv_usage) == (50, 100, 0.75)


@pytest.mark.parametrize("page", ["", "python_info 1.0\n", METRICS.replace("kv_cache_usage", "x")])
def test_a_server_that_does_not_tell_has_no_known_pressure(page):
    assert read_pressure(page) is None


async def test_a_busy_replica_is_full_when_its_engine_says_so(cluster):
    await cluster.start(replicas=1, probe_s=0.01, max_sequences=500)
    runner, address = await _page(METRICS)
    await cluster.bus.put(replace(cluster.replicas[0].member(), address=address))
    await cluster.until_leased("replica-0")
    with await cluster.reservations.reserve(
        ReservationRequest(model=None, session=None, weight=60)
    ):
        await _until(lambda: cluster.reservations.full("replica-0"))
    assert 50 < cluster.reservations.chooser.health("replica-0").cap.limit < 60
    await runner.cleanup()
