"""kill -9 of a trainer rank in a step and in a save; in a push: see `test_weights_kill`."""

import asyncio

import pytest

from tests.chaos.scene import Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


def same_parameters(scene: Scene, one: int, other: int) -> bool:
    """Whether two versions are the same model, bit for bit."""
    first, second = scene.parameters(one), scene.parameters(other)
    return first.keys() == second.keys() and all(first[n].equal(second[n]) for n in first)


async def test_a_rank_killed_in_a_step_costs_the_step_and_the_replay_gives_the_same_numbers(
    scene: Scene,
) -> None:
    replica_ids = list(scene.replicas)
    saved = await scene.train()
    step = (await scene.save()).saved_step
    first = await scene.train()
    victim = scene.ranks.ranks[1]
    await victim.hold_step.remote()
    retried = asyncio.create_task(scene.train())
    await victim.wait_until_stepping.remote()
    victim.process.kill()
    for replica_id in replica_ids:
        await scene.client.flows(replica_id)
    again = await retried
    assert again > first + 1, "new ranks publish what they loaded under a number of its own"
    assert same_parameters(scene, again, first)
    assert same_parameters(scene, again - 1, saved)
    await scene.until_served(again, replica_ids)
    assert scene.checkpoints[-1] == f"step-{step:08d}"


async def test_a_rank_killed_in_a_save_leaves_the_checkpoint_before_and_no_trace_after_the_next(
    scene: Scene,
) -> None:
    await scene.train()
    step = (await scene.save()).saved_step
    first = await scene.train()
    victim = scene.ranks.ranks[1]
    await victim.hold_save.remote()
    assert (await scene.save(wait=False)).saved_step == step
    await scene.train()  # which goes on meanwhile
    assert f".writing-step-{step + 1:08d}" in scene.checkpoints
    victim.process.kill()
    again = await scene.train()
    assert same_parameters(scene, again, first)
    assert (await scene.save()).saved_step == step + 1
    assert scene.checkpoints == [f"step-{step:08d}", f"step-{step + 1:08d}"]
