"""SIGSTOP in the middle of a push, with requests in flight, and SIGCONT later."""

import pytest

from tests.chaos.scene import KILL_S, LINK_S, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_frozen_receiver_delays_no_other_and_thaws_under_its_old_label(
    scene: Scene,
) -> None:
    survivor, victim = scene.replicas
    before = max(scene.client.labels(victim))
    version = await scene.train_and_hold(0, [survivor, victim])
    scene.freeze(scene.replicas[victim].pid)
    await scene.ranks.release()
    assert await scene.until_served(version, [survivor]) < KILL_S
    await scene.client.served(survivor, version)
    await scene.until(
        lambda table: [one.replica_id for one in table.leased] == [survivor],
        "only the survivor has a lease",
    )
    assert scene.client.labels(victim) == {before}
    newer = await scene.train()
    assert await scene.until_served(newer, [survivor]) < KILL_S

    scene.thaw(scene.replicas[victim].pid)
    await scene.until_served(newer, [victim])
    await scene.client.served(victim, newer)
    assert scene.client.labels(victim) <= {before, version, newer}


async def test_a_frozen_sender_delays_its_receivers_by_one_link_deadline(scene: Scene) -> None:
    early, late = scene.replicas
    version = await scene.train_and_hold(0, [late])
    await scene.until_served(version, [early])
    sender = scene.ranks.ranks[0].process.pid
    scene.freeze(sender)
    assert await scene.until_served(version, [late]) < LINK_S + KILL_S
    await scene.client.served(late, version)

    scene.thaw(sender)
    await scene.ranks.release()
    newer = await scene.train()
    await scene.until_served(newer, [early, late])
