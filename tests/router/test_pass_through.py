"""Requests that only the replica itself can answer, and replicas that break meanwhile."""

import openai
import pytest

ECHO = {"model": "test-model", "prompt": "a", "echo": True}


@pytest.mark.parametrize(
    "extra",
    [
        {"echo": True},
        {"prompt": ["a", "b"]},
        {"prompt_logprobs": 0},
        {"return_token_offsets": True},
    ],
)
async def test_the_replicas_own_answer_is_passed_on_with_its_name(cluster, extra):
    await cluster.start()
    body = {"model": "test-model", "prompt": "a", **extra}
    got = await cluster.http.post(f"{cluster.url}/v1/completions", json=body)
    assert got.json()["made_by"] == "replica"
    replica = got.headers["x-millrace-replica"]
    assert got.json()["choices"][0]["text"] == f"{replica} says this"
    assert [r.bodies for r in cluster.replicas if r.replica_id == replica] == [[body]]


async def test_what_the_router_cannot_read_the_replica_judges(cluster):
    await cluster.start(replicas=1)
    body = {"model": "test-model", "prompt": "a", "n": "many"}
    await cluster.http.post(f"{cluster.url}/v1/completions", json=body)
    assert cluster.replicas[0].bodies == [body]


@pytest.mark.parametrize(
    "kind", ["drop", "abort", "error_event", "error_in_words", "no_object", "no_choices"]
)
async def test_an_answer_in_one_piece_survives_its_replica(cluster, fault, kind):
    await cluster.start()
    cluster.faults.append(fault(kind))
    got = await cluster.http.post(f"{cluster.url}/v1/completions", json=ECHO)
    assert got.json()["choices"][0]["finish_reason"] == "length"
    assert sorted(len(replica.bodies) for replica in cluster.replicas) == [1, 1]


@pytest.mark.parametrize(
    "kind", ["drop", "eof", "error_event", "error_in_words", "no_object", "no_choices"]
)
async def test_a_stream_survives_its_replica_until_its_first_event(cluster, fault, kind):
    await cluster.start()
    cluster.faults.append(fault(kind, 0))
    stream = await cluster.client.completions.create(**ECHO, stream=True)
    words = [event.choices[0].text async for event in stream]
    assert words[1:] == ["says ", "this"]
    assert sorted(len(replica.bodies) for replica in cluster.replicas) == [1, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_with_status_200_gets_its_own_status(cluster, fault, stream):
    await cluster.start()
    cluster.faults.append(fault("refusal_event"))
    with pytest.raises(openai.UnprocessableEntityError, match="no such thing"):
        await cluster.client.completions.create(**ECHO, stream=stream)
    assert sum(len(replica.bodies) for replica in cluster.replicas) == 1


@pytest.mark.parametrize("kind", ["drop", "eof", "error_event", "no_object"])
async def test_a_stream_that_is_cut_later_says_that_it_cannot_go_on(cluster, fault, kind):
    await cluster.start()
    cluster.faults.append(fault(kind, 2))
    stream = await cluster.client.completions.create(**ECHO, stream=True)
    seen = []
    with pytest.raises(openai.APIError, match="an answer with echo cannot be continued"):
        await _read(stream, seen)
    assert len(seen) == 2


async def _read(stream, seen):
    async for event in stream:
        seen.append(event.choices[0].text)


async def test_losses_are_bounded(cluster, fault):
    await cluster.start(max_retries=2, eject_after=1000)
    cluster.faults.extend([fault("drop")] * 3)
    with pytest.raises(openai.InternalServerError, match="given up after 3 attempts"):
        await cluster.client.completions.create(**ECHO)
