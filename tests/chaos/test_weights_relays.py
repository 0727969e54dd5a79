"""A trainer, three relays in a chain, and the replicas of their nodes; each link of it breaks."""

import pytest

from benchmarks.weight_fanout.world import copies
from services.transport.shared_memory import memory_domain
from tests.chaos.children import ELSEWHERE
from tests.chaos.scene import KILL_S, LINK_S, Scene, family

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIRST, MIDDLE, LAST = 0, 1, 2
ANOTHER = "a node without replicas and without ranks"


async def chain(scene: Scene) -> list[str]:
    """Three relays; the first is fed over TCP, and the others, behind it, feed all replicas."""
    return await relays_of(scene, ANOTHER, memory_domain(), ELSEWHERE)


async def relays_of(scene: Scene, *domains: str) -> list[str]:
    """A relay in each memory domain, in the order of the chain."""
    relays = [await scene.start_relay(domain) for domain in domains]
    await scene.until_served(await scene.train(), list(scene.replicas))
    return relays


async def all_serve(scene: Scene, version: int, limit_s: float) -> None:
    assert await scene.until_served(version, list(scene.replicas)) < limit_s
    for replica_id in scene.replicas:
        await scene.client.served(replica_id, version)


async def test_the_trainers_traffic_does_not_grow_with_the_replicas_of_a_node(scene: Scene) -> None:
    _, *behind = await chain(scene)
    await scene.ranks.ranks[0].hold.remote([*behind, *scene.replicas], 0)
    version = await scene.train()
    await scene.until_served(version, list(scene.replicas))
    for replica_id in scene.replicas:
        await scene.client.served(replica_id, version)
    await scene.ranks.release()


async def test_a_node_holds_one_copy_for_all_workers_of_its_engines(scene: Scene) -> None:
    parallel = scene.start_replica(tensor_parallel_size=2)
    await scene.until_served(0, [parallel])
    await relays_of(scene, memory_domain(), ELSEWHERE)
    version = await scene.train()
    await scene.until_served(version, list(scene.replicas))
    model = sum(one.nbytes for one in scene.parameters(version).values())
    everybody = [*scene.replicas.values(), *scene.relays.values()]
    found = copies(one.pid for process in everybody for one in family(process.pid))
    snapshots = copies(rank.process.pid for rank in scene.ranks.ranks)
    held = sum(size for inode, size in found.items() if inode not in snapshots)
    assert model <= held <= 1.1 * model, "on the node without ranks"
    written = sum(snapshots.values())
    assert written <= 1.1 * 3 * model, "the other node has what its ranks wrote, and no more"


@pytest.mark.parametrize("place", [FIRST, MIDDLE, LAST])
async def test_a_relay_killed_in_mid_push_delays_its_replicas_and_no_version_is_torn(
    scene: Scene, place: int
) -> None:
    relays = await chain(scene)
    version = await scene.train_and_hold(0, relays[:1])
    scene.kill_relay(relays[place])
    await scene.ranks.release()
    await all_serve(scene, version, KILL_S)
    again = await scene.train()
    assert await scene.until_served(again, list(scene.replicas)) < KILL_S


@pytest.mark.parametrize("place", [FIRST, MIDDLE, LAST])
async def test_a_frozen_relay_costs_the_deadline_of_its_links(scene: Scene, place: int) -> None:
    relays = await chain(scene)
    version = await scene.train_and_hold(0, relays[:1])
    scene.freeze(scene.relays[relays[place]].pid)
    await scene.ranks.release()
    assert await scene.until_served(version, list(scene.replicas)) < KILL_S + LINK_S
    scene.thaw(scene.relays[relays[place]].pid)
    await scene.until_served(await scene.train(), list(scene.replicas))


@pytest.mark.parametrize("place", [FIRST, MIDDLE])
async def test_a_link_between_relays_that_breaks_half_way_is_made_again(
    scene: Scene, place: int
) -> None:
    relays = await chain(scene)
    sender, receiver = relays[place], relays[MIDDLE]
    await scene.tell_relay(relays[FIRST], "hold", [receiver], 2)
    version = await scene.train()
    await scene.tell_relay(relays[FIRST], "wait_until_held", [receiver])
    scene.kill_relay(sender)
    if place != FIRST:
        await scene.tell_relay(relays[FIRST], "release")
    await all_serve(scene, version, KILL_S)


@pytest.mark.parametrize("fault", ["corrupt", "drop"])
async def test_a_relay_that_sends_a_wrong_bit_or_ends_early_is_found_by_the_next(
    scene: Scene, fault: str
) -> None:
    first, middle, _ = await chain(scene)
    await scene.tell_relay(first, "inject_fault", fault, middle, 1)
    version = await scene.train()
    await all_serve(scene, version, KILL_S)
    assert await scene.tell_relay(first, "waiting_faults") == 0, "it was sent"


async def test_a_wrong_bit_from_a_rank_goes_no_further_than_the_first_relay(scene: Scene) -> None:
    first, *_ = await chain(scene)
    rank = scene.ranks.ranks[1]
    await rank.inject_fault.remote("corrupt", first, 1)
    await all_serve(scene, await scene.train(), KILL_S)
    assert await rank.waiting_faults.remote() == 0, "it was sent"


async def test_a_frozen_rank_delays_the_chain_for_as_long_and_stops_no_answer(
    scene: Scene,
) -> None:
    relays = await chain(scene)
    version = await scene.train_and_hold(0, relays[:1])
    rank = scene.ranks.ranks[0].process.pid
    scene.freeze(rank)
    for replica_id in scene.replicas:
        await scene.client.flows(replica_id)
    scene.thaw(rank)
    await scene.ranks.release()
    await all_serve(scene, version, KILL_S + LINK_S)


async def test_a_frozen_bus_delays_the_chain_for_as_long_and_stops_no_answer(scene: Scene) -> None:
    relays = await chain(scene)
    version = await scene.train_and_hold(0, relays[:1])
    scene.freeze_bus()
    await scene.ranks.release()
    for replica_id in scene.replicas:
        await scene.client.flows(replica_id)
    scene.thaw_bus()
    await all_serve(scene, version, KILL_S + LINK_S)


async def test_a_killed_rank_in_mid_push_is_no_loss_behind_the_relays(scene: Scene) -> None:
    relays = await chain(scene)
    await scene.train_and_hold(1, relays[:1])
    scene.ranks.ranks[1].process.kill()
    for replica_id in scene.replicas:
        await scene.client.flows(replica_id)
    new = await scene.train()
    assert await scene.until_served(new, list(scene.replicas)) < KILL_S


async def test_a_killed_bus_learns_from_the_relays_where_they_were(scene: Scene) -> None:
    relays = await chain(scene)
    version = await scene.train_and_hold(0, relays[:1])
    scene.kill_bus()
    for replica_id in scene.replicas:
        await scene.client.flows(replica_id)
    await scene.ranks.release()
    scene.start_bus()
    assert await scene.until_served(version, list(scene.replicas)) < KILL_S
    assert await scene.train() == version + 1
    await scene.until_served(version + 1, list(scene.replicas))


async def test_a_replica_killed_while_its_relay_receives_leaves_the_chain_whole(
    scene: Scene,
) -> None:
    relays = await chain(scene)
    version = await scene.train_and_hold(0, relays[:1])
    victim, survivor = scene.replicas
    scene.kill_replica(victim)
    await scene.ranks.release()
    assert await scene.until_served(version, [survivor]) < KILL_S
    successor = scene.start_replica()
    await scene.until_served(version, [successor])
