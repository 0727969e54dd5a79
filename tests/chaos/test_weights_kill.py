"""kill -9 in the middle of a push, with requests in flight."""

import pytest

from tests.chaos.scene import KILL_S, Scene, until_ended

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_killed_receiver_delays_no_other_and_leaves_no_process(scene: Scene) -> None:
    survivor, victim = scene.replicas
    version = await scene.train_and_hold(0, [survivor, victim])
    below = scene.kill_replica(victim)
    await scene.ranks.release()
    assert await scene.until_served(version, [survivor]) < KILL_S
    await scene.client.served(survivor, version)
    assert below
    await until_ended(below, KILL_S)

    successor = scene.start_replica()
    await scene.until_served(version, [successor])
    scene.client.ask(await scene.member(successor))
    await scene.client.served(successor, version)


async def test_a_killed_sender_is_replaced_by_a_replica_that_has_the_version(scene: Scene) -> None:
    early, late = scene.replicas
    version = await scene.train_and_hold(0, [late])
    await scene.until_served(version, [early])
    scene.ranks.ranks[0].process.kill()
    assert await scene.until_served(version, [late]) < KILL_S
    await scene.client.served(late, version)
    again = await scene.train()
    assert again > version
    await scene.until_served(again, [early, late])


async def test_a_killed_rank_1_takes_its_version_along_and_no_replica_serves_less_than_a_whole_one(
    scene: Scene,
) -> None:
    replica_ids = list(scene.replicas)
    before = max(scene.client.labels(replica_ids[0]))
    lost = await scene.train_and_hold(1, replica_ids)
    scene.ranks.ranks[1].process.kill()
    for replica_id in replica_ids:
        await scene.client.flows(replica_id)
    new = await scene.train()
    assert await scene.until_served(new, replica_ids) < KILL_S
    for replica_id in replica_ids:
        await scene.client.served(replica_id, new)
        assert lost not in scene.client.labels(replica_id)
        assert before in scene.client.labels(replica_id)


async def test_a_killed_bus_stops_no_request_and_goes_on_where_it_was(scene: Scene) -> None:
    replica_ids = list(scene.replicas)
    version = await scene.train_and_hold(0, replica_ids)
    scene.kill_bus()
    for replica_id in replica_ids:
        await scene.client.flows(replica_id)
    await scene.ranks.release()
    scene.start_bus()
    assert await scene.until_served(version, replica_ids) < KILL_S
    assert (await scene.table()).newest_version == version
    assert await scene.train() == version + 1
    await scene.until_served(version + 1, replica_ids)


async def test_a_killed_tensor_parallel_worker_takes_its_replica_out_and_no_other(
    scene: Scene,
) -> None:
    parallel = scene.start_replica(tensor_parallel_size=2)
    await scene.until_served(0, [parallel])
    scene.client.ask(await scene.member(parallel))
    await scene.client.flows(parallel)
    others = [one for one in scene.replicas if one != parallel]
    version = await scene.train_and_hold(0, [parallel, *others])
    scene.kill_below(parallel, "Worker_TP1")
    await scene.ranks.release()
    assert await scene.until_served(version, others) < KILL_S
    await scene.until_gone(parallel)
    for replica_id in others:
        await scene.client.served(replica_id, version)
