"""`GET /v1/load`: how full the replicas are, for whoever decides how much to ask for."""

import asyncio

from services.router.placement.health import Pressure
from tests.router.test_failover import _whole


async def test_the_address_alone_leads_to_the_page(cluster):
    await cluster.start()
    answer = await cluster.http.get(f"{cluster.url}/")
    assert (answer.status_code, answer.headers["location"]) == (307, "page/")


async def test_a_model_is_listed_with_the_models_that_its_replicas_were_trained_from(cluster):
    await cluster.start()
    first, second = cluster.replicas
    old = second.member(trained_from="models/old")
    for own, listed in (
        ("models/old", ["models/old"]),
        ("models/new", ["models/new", "models/old"]),
        ("", ["models/old"]),
    ):
        await cluster.bus.put(first.member(trained_from=own), old)
        async with asyncio.timeout(300):
            while await _origins(cluster) != listed:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def _origins(cluster):
    [model] = (await cluster.http.get(f"{cluster.url}/v1/models")).json()["data"]
    return model["trained_from"]


async def test_the_load_counts_what_runs_what_waits_and_what_the_engines_say(cluster, fault):
    await cluster.start(max_sequences=1, min_sequences=1, max_choices=7)
    url = f"{cluster.url}/v1/load"
    idle = (await cluster.http.get(url)).json()
    assert idle == {
        "replicas": 2,
        "full": 0,
        "in_flight": 0,
        "waiting": 0,
        "queued": 0.0,
        "kv_usage": None,
        "max_choices": 7,
        "by_replica": {"replica-0": 0, "replica-1": 0},
    }
    cluster.faults.extend([fault("stall", 2), fault("stall", 2)])
    answers = [asyncio.create_task(_whole(cluster)) for _ in range(3)]
    async with asyncio.timeout(300):
        while (load := (await cluster.http.get(url)).json())["waiting"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert (load["full"], load["in_flight"], load["kv_usage"]) == (2, 2, None)
    assert load["by_replica"] == {"replica-0": 1, "replica-1": 1}
    for name, usage in (("replica-0", 0.5), ("replica-1", 1.0)):
        cluster.reservations.chooser.health(name).cap.observe(
            Pressure(running=1, waiting=3, kv_usage=usage), 1
        )
    load = (await cluster.http.get(url)).json()
    assert (load["queued"], load["kv_usage"]) == (6.0, 0.75)
    for answer in answers:
        answer.cancel()
    await asyncio.gather(*answers, return_exceptions=True)
