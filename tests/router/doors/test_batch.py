"""A batch of conversations is answered as so many chats, in one answer."""

import asyncio

import httpx
import pytest

from tests.router.conftest import MODEL

PATH = "/v1/chat/completions/batch"
SAID = ["one and\nmore", "two and\nother things", "three"]
TEXTS = ["amore", "aother things", "athree"]


def _conversations(texts=SAID):
    return [[{"role": "user", "content": text}] for text in texts]


async def _posted(cluster, headers=None, **more):
    body = {"model": MODEL, "messages": _conversations(), **more}
    return await cluster.http.post(cluster.url + PATH, json=body, headers=headers)


async def test_each_conversation_is_a_choice_with_the_number_that_it_was_sent_with(cluster):
    await cluster.start()
    response = await _posted(cluster, headers={"x-request-id": "mine"}, return_trajectory=True)
    answer = response.json()
    assert (answer["id"], answer["object"]) == ("chatcmpl-mine", "chat.completion")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == TEXTS
    made = [len(choice["trajectory"]["token_ids"]) for choice in answer["choices"]]
    prompts = [len(choice["trajectory"]["prompt_token_ids"]) for choice in answer["choices"]]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(prompts), sum(made))
    assert usage["total_tokens"] == sum(prompts) + sum(made)


async def test_a_batch_survives_the_loss_of_a_replica(cluster, fault):
    await cluster.start()
    cluster.faults.append(fault("drop", after=3))
    answer = (await _posted(cluster)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == TEXTS
    assert not cluster.faults


async def test_a_session_records_every_conversation_of_a_batch(cluster):
    await cluster.start()
    made = (await cluster.http.post(f"{cluster.url}/v1/sessions", json={})).json()
    await _posted(cluster, headers={"x-session-id": made["id"]})
    kept = (await cluster.http.get(f"{cluster.url}/v1/sessions/{made['id']}")).json()
    said = [bytes(one["response_token_ids"][:-1]).decode() for one in kept["trajectories"]]
    assert sorted(said) == sorted(TEXTS)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [[], [{"role": "user", "content": "x"}]]}, "messages"),
        ({"messages": _conversations(["x"] * 9)}, "messages"),
        ({"request_id": 5}, "request_id"),
        (
            {"kv_transfer_params": {"prompt_token_ids": [1]}},
            "kv_transfer_params.prompt_token_ids",
        ),
    ],
)
async def test_what_no_batch_can_have_is_refused_with_its_field(cluster, more, param):
    await cluster.start(max_choices=8)
    refused = await _posted(cluster, **more)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


async def test_a_body_that_is_no_object_is_refused(cluster):
    await cluster.start()
    for raw in (b"[]", b"{"):
        refused = await cluster.http.post(cluster.url + PATH, content=raw)
        assert refused.status_code == 400


async def test_one_refused_conversation_refuses_the_batch_and_leaves_nothing_behind(cluster):
    await cluster.start()
    refused = await _posted(cluster, temperature=-1)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temperature"
    assert not cluster.reservations.chooser.counts


async def test_a_client_that_leaves_ends_all_its_conversations(cluster, fault):
    await cluster.start(replicas=1)
    (replica,) = cluster.replicas
    cluster.faults.append(fault("stall", after=2))
    asked = asyncio.create_task(_posted(cluster))
    await replica.stalled.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await asyncio.wait_for(replica.hung_up.wait(), 300)


async def test_open_requests_are_bounded_by_conversation(cluster):
    await cluster.start(max_open_requests=2)
    refused = await _posted(cluster)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert httpx.codes.is_success(
        (await _posted(cluster, messages=_conversations(["x"]))).status_code
    )
