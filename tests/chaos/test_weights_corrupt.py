"""A wrong bit on the wire, and a send that ends early, with requests in flight."""

import pytest

from tests.chaos.answers import Judge
from tests.chaos.conftest import TOLERANCE
from tests.chaos.scene import KILL_S, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_corrupted_bucket_is_refused_and_sent_again(scene: Scene, judge: Judge) -> None:
    other, receiver = scene.replicas
    before = max(scene.client.labels(receiver))
    known = (await scene.member(other)).last_error
    await scene.ranks.ranks[1].inject_fault.remote("corrupt", receiver, 1)
    version = await scene.train()
    assert await scene.until_served(version, [other, receiver]) < KILL_S
    member = await scene.member(receiver)
    assert "digest of bucket 1" in member.last_error
    assert (await scene.member(other)).last_error == known
    await scene.client.served(receiver, version)

    # That every token is judged means something: these weights differ.
    tokens = max(scene.client.journals[receiver], key=lambda one: len(one.token_ids)).token_ids
    moved = (judge.logprobs(version, tokens) - judge.logprobs(before, tokens)).abs().max()
    assert moved > 100 * TOLERANCE


async def test_a_send_that_ends_half_way_is_made_again(scene: Scene) -> None:
    other, receiver = scene.replicas
    before = (await scene.member(receiver)).last_error
    await scene.ranks.ranks[0].inject_fault.remote("drop", receiver)
    version = await scene.train()
    await scene.until_served(version, [other, receiver])
    assert (await scene.member(receiver)).last_error not in ("", before)
    await scene.client.served(receiver, version)
