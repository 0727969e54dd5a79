"""Replicas that join while others are being served, or when nobody trains any more."""

import asyncio

import pytest

from tests.chaos.scene import KILL_S, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_late_joiner_is_caught_up_before_its_lease(scene: Scene) -> None:
    """It joins during a push to the others, which is held until it serves."""
    others = list(scene.replicas)
    version = await scene.train_and_hold(0, others)
    joiner = scene.start_replica()
    leased_without = asyncio.create_task(scene.first_lease(joiner))
    await scene.until_served(version, [joiner])
    assert (await leased_without).committed_version == version
    scene.client.ask(await scene.member(joiner))
    await scene.client.served(joiner, version)
    assert scene.client.labels(joiner) == {version}

    await scene.ranks.release()
    assert await scene.until_served(version, others) < KILL_S


async def test_a_joiner_gets_the_weights_from_a_replica_when_both_trainer_ranks_are_dead(
    scene: Scene,
) -> None:
    version = await scene.train()
    await scene.until_served(version, list(scene.replicas))
    scene.ranks.may_start.clear()
    for rank in scene.ranks.ranks:
        rank.process.kill()
    joiner = scene.start_replica()
    await scene.until_served(version, [joiner])
    scene.client.ask(await scene.member(joiner))
    await scene.client.served(joiner, version)
    assert scene.client.labels(joiner) == {version}
    assert (await scene.table()).newest_version == version

    scene.ranks.may_start.set()
    newer = await scene.train()
    await scene.until_served(newer, list(scene.replicas))
