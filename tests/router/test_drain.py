"""Draining: open answers of a replica that leaves go on elsewhere."""

import asyncio

import pytest

from services.protocol.weights.weight_bus import ReplicaState

ASK = [{"role": "user", "content": "hello, and a little more"}]
WHOLE = "ahello, and a little more"


async def _stalled_answer(cluster, fault, **settings):
    """An answer of which one replica has given a part, and that would wait for hours."""
    await cluster.start(between_tokens_s=3600.0, first_token_s=3600.0, **settings)
    cluster.faults.append(fault("stall", 3))
    chat = cluster.client.chat.completions.create(model="test-model", messages=ASK)
    running = asyncio.create_task(chat)
    return running, await cluster.stalled()


@pytest.mark.parametrize("state", [ReplicaState.PAUSED, ReplicaState.ASLEEP, ReplicaState.SUSPECT])
async def test_what_a_draining_replica_has_begun_goes_on_elsewhere(cluster, fault, state):
    running, drains = await _stalled_answer(cluster, fault)
    await cluster.bus.put(drains.member(state=state, leased=False))
    answer = await asyncio.wait_for(running, 300)
    assert answer.choices[0].message.content == WHOLE
    assert answer.usage.completion_tokens == len(WHOLE) + 1
    await asyncio.wait_for(drains.hung_up.wait(), 300)
    (other,) = (replica for replica in cluster.replicas if replica is not drains)
    assert len(other.bodies) == 1


async def test_a_replica_that_is_scaled_down_hands_its_answers_on(cluster, fault):
    """It leaves the bus before it closes its server."""
    running, leaves = await _stalled_answer(cluster, fault)
    del cluster.bus.members[leaves.replica_id]
    await cluster.bus.put()
    answer = await asyncio.wait_for(running, 300)
    assert answer.choices[0].message.content == WHOLE


async def test_the_only_replica_keeps_its_answers_while_it_is_merely_suspected(cluster, fault):
    running, suspect = await _stalled_answer(cluster, fault, replicas=1)
    await cluster.bus.put(suspect.member(state=ReplicaState.SUSPECT, leased=False))
    await cluster.until_leased()
    assert not suspect.hung_up.is_set()
    await cluster.bus.put(suspect.member(state=ReplicaState.DEAD, leased=False))
    await asyncio.wait_for(suspect.hung_up.wait(), 300)
    await cluster.bus.put(suspect.member())
    answer = await asyncio.wait_for(running, 300)
    assert answer.choices[0].message.content == WHOLE
