"""Replicas break at every position; the record equals that of an unbroken answer."""

import asyncio
import json

import openai
import pytest

from services.protocol.weights.weight_bus import ReplicaState

LINE = "grüße 世界! tail"
ASK = [{"role": "user", "content": LINE}]
TOKENS = 1 + len(LINE.encode()) + 1
EVERY_POSITION = [0, 1, 3, 4, 9, 10, 11, TOKENS - 2, TOKENS - 1]
"""Includes cuts inside two-byte and three-byte characters, and right before the end."""


async def _whole(cluster, **body):
    body = {"model": "test-model", "messages": ASK, "return_trajectory": True, **body}
    got = await cluster.http.post(f"{cluster.url}/v1/chat/completions", json=body)
    assert got.status_code == 200, got.text
    choices = sorted(got.json()["choices"], key=lambda choice: choice["index"])
    return [_record(c, c["message"]["content"], c["logprobs"]) for c in choices]


async def _streamed(cluster, **body):
    """The same record, put together from a stream of tokens."""
    body = {"model": "test-model", "messages": ASK, "return_trajectory": True, **body}
    body["stream"] = True
    texts, entries, last = {}, {}, {}
    url = f"{cluster.url}/v1/chat/completions"
    async with cluster.http.stream("POST", url, json=body) as got:
        assert got.status_code == 200, await got.aread()
        async for line in got.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            (choice,) = event["choices"]
            index = choice["index"]
            texts[index] = texts.get(index, "") + choice["delta"]["content"]
            if choice["logprobs"]:
                entries.setdefault(index, []).extend(choice["logprobs"]["content"])
            if choice["finish_reason"]:
                last[index] = choice
    return [
        _record(last[i], texts[i], {"content": entries[i]} if i in entries else None)
        for i in sorted(last)
    ]


def _record(choice, text, logprobs):
    trajectory = choice["trajectory"]
    return {
        "text": text,
        "tokens": trajectory["token_ids"],
        "prompt": trajectory["prompt_token_ids"],
        "logprobs": trajectory["logprobs"],
        "shown": logprobs and [entry["logprob"] for entry in logprobs["content"]],
        "ends": [choice["finish_reason"], choice["stop_reason"]],
        "versions": _by_token(trajectory["spans"]),
    }


def _by_token(spans):
    at = 0
    for _, start, end, _ in spans:
        assert start == at
        assert end > start
        at = end
    return [version for version, start, end, _ in spans for _ in range(start, end)]


BODIES = {
    "plain": {},
    "logprobs": {"logprobs": True},
    "length": {"max_tokens": 12},
    "group": {"n": 3, "seed": 0},
    "stop string across the cut": {"stop": ["界! t"]},
    "stop string kept": {"stop": ["e 世"], "include_stop_str_in_output": True, "logprobs": True},
    "two stop strings": {"stop": ["zzzz", "tai"]},
    "stop token": {"stop_token_ids": [ord("!")]},
    "min tokens": {"min_tokens": 30, "max_tokens": 33},
    "min tokens over a stop string": {"min_tokens": 14, "stop": ["世", "tail"]},
}


@pytest.mark.parametrize("ask", [_whole, _streamed], ids=["whole", "stream"])
@pytest.mark.parametrize("name", BODIES)
async def test_a_replicas_death_costs_no_request(cluster, fault, ask, name):
    """At every position the record is that of the uninterrupted answer."""
    await cluster.start(eject_after=1000)
    body = BODIES[name]
    expected = await ask(cluster, **body)
    for after in EVERY_POSITION:
        cluster.faults.append(fault("drop", after))
        assert await ask(cluster, **body) == expected, after
        assert not cluster.faults


@pytest.mark.parametrize("ask", [_whole, _streamed], ids=["whole", "stream"])
async def test_two_deaths_and_several_tokens_a_chunk_change_nothing(cluster, fault, ask):
    await cluster.start(replicas=3, eject_after=1000)
    expected = await ask(cluster, stop=["tail"], logprobs=True)
    for replica in cluster.replicas:
        replica.tokens_per_chunk = 3
    for first, second in [(2, 3), (4, 1), (9, 5), (0, 6), (12, 3)]:
        cluster.faults.extend([fault("drop", first), fault("drop", second)])
        assert await ask(cluster, stop=["tail"], logprobs=True) == expected
        assert not cluster.faults


@pytest.mark.parametrize(
    "kind",
    [
        *("drop", "eof", "stall", "abort", "error_event", "engine_error"),
        *("unlabelled", "bad_label", "status"),
    ],
)
async def test_every_kind_of_break_is_survived(cluster, fault, kind):
    await cluster.start(between_tokens_s=0.3, first_token_s=0.3)
    expected = await _whole(cluster)
    for after in (3, 0):
        cluster.faults.append(fault(kind, after))
        assert await _whole(cluster) == expected
        assert not cluster.faults


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("max_tokens", [9, 400], ids=["whole", "stream"])
async def test_a_request_that_engines_end_with_an_error_is_tried_twice(
    cluster, fault, replicas, max_tokens
):
    """As one whose grammar cannot be compiled: the fault is the request's, and no replica's."""
    await cluster.start(replicas=replicas, eject_after=1, eject_s=600)
    for replica in cluster.replicas:
        replica.always = fault("engine_error")
    body = {"model": "test-model", "messages": ASK, "max_tokens": max_tokens}
    got = await cluster.http.post(f"{cluster.url}/v1/chat/completions", json=body)
    assert got.status_code == 500
    assert got.json()["error"]["type"] == "engine_error"
    assert "Internal server error" in got.json()["error"]["message"]
    assert sum(len(replica.bodies) for replica in cluster.replicas) == 2
    for replica in cluster.replicas:
        replica.always = None
    await _whole(cluster)


async def test_errors_of_engines_after_new_tokens_are_no_row(cluster, fault):
    await cluster.start()
    expected = await _whole(cluster)
    cluster.faults.extend(fault("engine_error", 2) for _ in range(3))
    assert await _whole(cluster) == expected
    assert not cluster.faults


async def test_the_trajectory_shows_one_more_span_and_a_group_continues_choice_by_choice(
    cluster, fault
):
    await cluster.start()
    cluster.faults.append(fault("drop", 12))
    answer = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, n=3, extra_body={"return_trajectory": True}
    )
    (broken,) = [replica for replica in cluster.replicas if len(replica.bodies) == 1]
    (other,) = [replica for replica in cluster.replicas if replica is not broken]
    for choice in answer.choices:
        spans = choice.model_extra["trajectory"]["spans"]
        assert [(start, end, who) for _, start, end, who in spans] == [
            (0, 4, broken.replica_id),
            (4, TOKENS, other.replica_id),
        ]
    bodies = other.bodies
    assert len(bodies) == 3
    assert {body["sampling_params"]["n"] for body in bodies} == {1}
    assert {body["sampling_params"]["max_tokens"] for body in bodies} == {400 - 4}


async def test_a_member_declared_dead_loses_its_open_requests_at_once(cluster, fault):
    await cluster.start(between_tokens_s=600, first_token_s=600)
    expected = await _whole(cluster)
    cluster.faults.append(fault("stall", 5))
    running = asyncio.create_task(_whole(cluster))
    frozen = await cluster.stalled()
    dead = frozen.member(state=ReplicaState.DEAD, leased=False)
    await cluster.bus.put(dead)
    assert await asyncio.wait_for(running, 300) == expected


async def test_losing_only_the_lease_does_not_disturb_an_open_request(cluster, fault):
    """A replica that lags or stages goes on with what it has; it only gets nothing new."""
    await cluster.start(replicas=1)
    replica = cluster.replicas[0]
    cluster.faults.append(fault("stall", 5))
    running = asyncio.create_task(_whole(cluster))
    await cluster.stalled()
    await cluster.bus.put(replica.member(leased=False))
    await cluster.until_leased()
    assert not running.done()
    assert [one.replica_id for one in cluster.reservations._open].count("replica-0") == 1
    running.cancel()


@pytest.mark.parametrize(
    ("extra", "reason"), [({"stop_token_ids": [7]}, 7), ({}, None)], ids=["stop token", "eos"]
)
async def test_a_choice_that_had_its_end_token_is_not_resubmitted(cluster, fault, extra, reason):
    """The replica dies after the token that ends the answer and before saying so."""
    await cluster.start()
    body = {"model": "test-model", "prompt": "\x07", "max_tokens": 50, **extra}
    expected = await cluster.client.completions.create(
        model="test-model", prompt="\x07", max_tokens=50, extra_body=extra
    )
    requests = sum(len(replica.bodies) for replica in cluster.replicas)
    cluster.faults.append(fault("mute", 1000))
    got = await cluster.http.post(f"{cluster.url}/v1/completions", json=body)
    choice = got.json()["choices"][0]
    assert choice["text"] == expected.choices[0].text
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
    assert sum(len(replica.bodies) for replica in cluster.replicas) == requests + 1


def _bodies(cluster):
    return [body for replica in cluster.replicas for body in replica.bodies]


async def test_an_unseen_answer_that_depends_on_its_own_tokens_begins_again(cluster, fault):
    await cluster.start()
    expected = await _whole(cluster)
    cluster.faults.append(fault("drop", 5))
    before = len(_bodies(cluster))
    assert await _whole(cluster, presence_penalty=0.5) == expected
    again = [body for body in _bodies(cluster) if body["sampling_params"].get("presence_penalty")]
    assert len(_bodies(cluster)) == before + 2
    assert [body["token_ids"] for body in again] == [expected[0]["prompt"]] * 2


@pytest.mark.parametrize("body", [{}, {"stop": ["界! t"]}, {"n": 3}, {"logprobs": True}], ids=str)
async def test_a_seen_answer_that_depends_on_its_own_tokens_is_replayed(cluster, fault, body):
    """The client sees each token once, with the logprob and the version it had first."""
    await cluster.start(replicas=3, eject_after=1000)
    body = {"presence_penalty": 0.5, "seed": 0, **body}
    expected = await _streamed(cluster, **body)
    for after in EVERY_POSITION:
        cluster.faults.append(fault("drop", after))
        assert await _streamed(cluster, **body) == expected, after
        assert not cluster.faults
    cluster.faults.extend([fault("drop", 9), fault("drop", 4), fault("drop", 12)])
    assert await _streamed(cluster, **body) == expected


async def test_an_answer_that_may_be_replayed_gets_a_seed(cluster, fault):
    await cluster.start()
    cluster.faults.append(fault("drop", 5))
    await _streamed(cluster, presence_penalty=0.5)
    first, second = [body["sampling_params"]["seed"] for body in _bodies(cluster)]
    assert first == second
    await _streamed(cluster)
    await _whole(cluster, presence_penalty=0.5)
    assert [body["sampling_params"].get("seed") for body in _bodies(cluster)].count(None) == 2


async def test_a_replay_that_comes_out_differently_is_an_error_and_never_shown(cluster, fault):
    await cluster.start()
    cluster.replicas[0].accent = 1
    cluster.faults.append(fault("drop", 5))
    events = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, presence_penalty=0.5, stream=True
    )
    with pytest.raises(openai.APIError, match="presence_penalty came out differently"):
        async for _ in events:
            pass
    assert len(_bodies(cluster)) == 2


async def test_retries_are_bounded_and_end_in_a_clear_error(cluster, fault):
    await cluster.start(max_retries=3, eject_after=1000)
    for replica in cluster.replicas:
        replica.always = fault("drop")
    with pytest.raises(openai.InternalServerError, match="given up after 4 attempts") as failure:
        await cluster.client.chat.completions.create(model="test-model", messages=ASK)
    assert failure.value.status_code == 503
    assert failure.value.response.headers["retry-after"] == "1"
    assert sum(len(replica.bodies) for replica in cluster.replicas) == 4
    for replica in cluster.replicas:
        replica.always = None
    cluster.faults.extend([fault("drop", 4), *[fault("drop")] * 3])
    stream = await cluster.client.chat.completions.create(
        model="test-model", messages=ASK, stream=True
    )
    with pytest.raises(openai.APIError, match="given up"):
        async for _ in stream:
            pass


@pytest.mark.parametrize("kind", ["drop", "abort"])
async def test_an_answer_that_gets_further_each_time_is_never_given_up(cluster, fault, kind):
    await cluster.start(max_retries=1, eject_after=1000)
    expected = await _streamed(cluster, logprobs=True)
    cluster.faults.extend([fault(kind, 1)] * 5)
    assert await _streamed(cluster, logprobs=True) == expected
    assert not cluster.faults


async def test_an_answer_that_only_repeats_itself_is_given_up(cluster, fault):
    """It begins again each time, and gets no further than it was before."""
    await cluster.start(max_retries=3, eject_after=1000)
    for replica in cluster.replicas:
        replica.always = fault("drop", 2)
    with pytest.raises(openai.InternalServerError, match="given up after 4 attempts"):
        await cluster.client.chat.completions.create(
            model="test-model", messages=ASK, presence_penalty=0.5, timeout=5
        )


@pytest.mark.parametrize("ask", [_whole, _streamed], ids=["whole", "stream"])
async def test_tokens_that_come_with_an_abort_are_shown_as_all_others(cluster, fault, ask):
    await cluster.start(eject_after=1000)
    expected = await ask(cluster, logprobs=True)
    for after in (0, 3, 9, TOKENS - 1):
        cluster.faults.extend([fault("abort_with_token", after), fault("abort_with_token", 2)])
        assert await ask(cluster, logprobs=True) == expected, after
        cluster.faults.clear()


async def test_answers_that_a_weight_update_aborts_do_not_eject_their_replica(cluster, fault):
    await cluster.start(replicas=1, eject_after=2)
    cluster.faults.extend([fault("abort", 1)] * 4)
    await _streamed(cluster, logprobs=True)
    assert not cluster.faults


async def test_a_replica_that_dies_while_decoding_text_is_replaced_too(cluster, fault):
    await cluster.start(replicas=3)
    expected = await _streamed(cluster, logprobs=True)
    cluster.faults.extend([fault("drop", 4), fault("derender")])
    assert await _streamed(cluster, logprobs=True) == expected
    assert not cluster.faults


async def test_a_fast_failing_replica_is_no_black_hole(cluster, fault):
    """It always looks idle; after a few failures it gets probes only."""
    await cluster.start(eject_s=60.0, eject_max_s=60.0)
    cluster.replicas[0].always = fault("status")
    await asyncio.gather(*(_whole(cluster) for _ in range(40)))
    assert len(cluster.replicas[0].bodies) <= 3 + 20
    before = len(cluster.replicas[0].bodies)
    await asyncio.gather(*(_whole(cluster) for _ in range(20)))
    assert len(cluster.replicas[0].bodies) == before


async def test_an_answer_of_the_engines_default_length_is_no_longer_after_a_cut(cluster, fault):
    """A replica leaves out of what it tells whatever is its engine's default."""
    await cluster.start()
    body = {"model": "test-model", "prompt": "a line of more than sixteen tokens"}
    url = f"{cluster.url}/v1/completions"
    whole = (await cluster.http.post(url, json=body)).json()["choices"][0]
    assert whole["finish_reason"] == "length"
    cluster.faults.append(fault("drop", 7))
    cut = (await cluster.http.post(url, json=body)).json()["choices"][0]
    assert not cluster.faults
    assert (cut["text"], cut["finish_reason"]) == (whole["text"], "length")
