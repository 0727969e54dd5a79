"""What the router asks of replicas, and what it does not, so that an answer costs little."""

import pytest

ASK = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}]
CHUNK = 4


@pytest.fixture
async def started(cluster):
    return await cluster.start(replicas=2, journal_tokens=CHUNK)


async def _chat(cluster, **more):
    return await cluster.client.chat.completions.create(model="test-model", messages=ASK, **more)


def _bodies(cluster):
    return [body for replica in cluster.replicas for body in replica.bodies]


async def test_an_answer_in_one_piece_is_made_in_chunks_of_many_tokens(started):
    await _chat(started)
    (body,) = _bodies(started)
    assert body["stream"]
    assert body["sampling_params"]["stream_interval"] == CHUNK


async def test_a_client_that_watches_gets_every_token_at_once(started):
    async for _ in await _chat(started, stream=True):
        pass
    (body,) = _bodies(started)
    assert body["sampling_params"]["stream_interval"] is None


async def test_an_answer_of_a_chunk_at_most_is_not_streamed_and_is_the_same(started):
    answer = await _chat(started, max_tokens=CHUNK)
    (body,) = _bodies(started)
    assert not body["stream"]
    longer = await _chat(started, max_tokens=CHUNK + 1)
    assert longer.choices[0].message.content.startswith(answer.choices[0].message.content)
    assert answer.usage.completion_tokens == CHUNK
    assert answer.choices[0].finish_reason == "length"


async def test_a_short_answer_survives_its_replica(started, fault):
    undisturbed = await _chat(started, max_tokens=CHUNK, n=2)
    started.faults.append(fault("drop", after=3))
    answer = await _chat(started, max_tokens=CHUNK, n=2)
    assert answer.choices == undisturbed.choices
    assert len(_bodies(started)) == 3


async def test_a_replica_that_stalls_in_a_short_answer_is_left(cluster, fault):
    await cluster.start(replicas=2, journal_tokens=CHUNK, first_token_s=0.05)
    cluster.faults.append(fault("stall", after=1))
    answer = await _chat(cluster, max_tokens=CHUNK)
    assert answer.usage.completion_tokens == CHUNK


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, False),
        ({"logprobs": True}, True),
        ({"extra_body": {"return_trajectory": True}}, True),
    ],
)
async def test_logprobs_are_made_only_for_those_who_see_them(started, more, wanted):
    await _chat(started, **more)
    (body,) = _bodies(started)
    assert (body["sampling_params"]["logprobs"] is not None) is wanted


async def test_logprobs_are_made_for_a_recorded_session(cluster):
    await cluster.start(replicas=1, record_sessions=True)
    await _chat(cluster, extra_headers={"x-session-id": "s"})
    (body,) = _bodies(cluster)
    assert body["sampling_params"]["logprobs"] is not None
