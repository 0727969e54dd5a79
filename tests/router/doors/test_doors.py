"""Every door gives the same answer whole, streamed, and with its replica lost in the middle."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from services.observability.metrics import RouterMetrics
from services.protocol.rollout_server import UNMASKED
from services.router.answering.generate_request import generate_request
from services.router.request.client_request import ClientRequest
from services.router.request.fixed_settings import FixedSettings
from services.side_by_side import cancel
from tests.router.conftest import MODEL

SAID = [{"role": "user", "content": "tell me\nsomething long"}]
LONG = "asomething long"
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "generate": "/inference/v1/generate",
}
BODIES = {
    "chat": {"messages": SAID},
    "messages": {"messages": SAID, "max_tokens": 60},
    "responses": {"input": SAID},
    "generate": {
        "token_ids": [*b"user\ntell me\nsomething long", 300],
        "sampling_params": {"logprobs": 0},
    },
}


async def _posted(cluster, door, **more):
    body = {"model": MODEL, **BODIES[door], **more}
    return await cluster.http.post(cluster.url + PATHS[door], json=body)


def _events(response):
    """Names and data of the events."""
    assert response.status_code == 200, response.text
    found = []
    for part in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in part.splitlines())
        if lines.get("data", "[DONE]") != "[DONE]":
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


def _text(door, response):
    """What a whole answer says."""
    assert response.status_code == 200, response.text
    answer = response.json()
    if door == "chat":
        return answer["choices"][0]["message"]["content"]
    if door == "messages":
        return "".join(block["text"] for block in answer["content"])
    if door == "responses":
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    return bytes(t for t in answer["choices"][0]["token_ids"] if t < 256).decode()


def _streamed_text(door, events):
    if door == "chat":
        return "".join(data["choices"][0]["delta"]["content"] for _, data in events)
    if door == "messages":
        deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas)
    if door == "responses":
        return "".join(d["delta"] for name, d in events if name == "response.output_text.delta")
    tokens = [token for _, data in events for token in data["choices"][0]["token_ids"]]
    return bytes(token for token in tokens if token < 256).decode()


@pytest.mark.parametrize("door", PATHS)
@pytest.mark.parametrize("kind", ["drop", "eof", "abort", "error_event"])
async def test_every_door_that_carries_tokens_has_failover(cluster, fault, door, kind):
    await cluster.start()
    cluster.faults.append(fault(kind, after=5))
    assert _text(door, await _posted(cluster, door)) == LONG
    cluster.faults.append(fault(kind, after=5))
    events = _events(await _posted(cluster, door, stream=True))
    assert _streamed_text(door, events) == LONG
    assert len({len(replica.bodies) for replica in cluster.replicas}) == 1
    assert not cluster.faults


async def test_messages_stream_as_anthropic_does(cluster):
    await cluster.start()
    events = _events(await _posted(cluster, "messages", stream=True))
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    start, end = events[0][1]["message"], events[-2][1]
    assert (start["role"], start["content"], start["model"]) == ("assistant", [], MODEL)
    assert start["usage"]["input_tokens"] > 0
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == len(LONG) + 1


@pytest.mark.parametrize(
    ("more", "stop"),
    [
        ({"max_tokens": 4}, ("max_tokens", None)),
        ({"stop_sequences": ["thing"]}, ("stop_sequence", "thing")),
        ({}, ("end_turn", None)),
    ],
    ids=["length", "sequence", "turn"],
)
async def test_messages_say_why_they_end(cluster, more, stop):
    await cluster.start()
    answer = (await _posted(cluster, "messages", **more)).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == stop
    assert answer["type"] == "message"
    assert answer["id"].startswith("msg_")


async def test_responses_stream_as_openai_does(cluster):
    await cluster.start()
    events = _events(await _posted(cluster, "responses", stream=True))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    kinds = [name.removeprefix("response.") for name, _ in events if "delta" not in name]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    created, completed = events[0][1]["response"], events[-1][1]["response"]
    assert created["status"], created["output"] == ("in_progress", [])
    assert completed["output"][0] == events[-2][1]["item"]
    assert completed["usage"]["output_tokens"] == len(LONG) + 1


async def test_a_response_that_was_cut_off_is_incomplete(cluster):
    await cluster.start()
    answer = (await _posted(cluster, "responses", max_output_tokens=4)).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["max_output_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_response_goes_on_from_an_earlier_one(cluster, stream):
    await cluster.start()
    first = await _posted(cluster, "responses", stream=stream)
    first = _events(first)[-1][1]["response"] if stream else first.json()
    more = {
        "input": [{"role": "user", "content": "and\nmore"}],
        "previous_response_id": first["id"],
    }
    second = (await _posted(cluster, "responses", **more)).json()
    assert second["previous_response_id"] == first["id"]
    assert second["output"][0]["content"][0]["text"].endswith("more")
    prompts = [body["token_ids"] for replica in cluster.replicas for body in replica.bodies]
    before, after = sorted(prompts, key=len)
    assert after[: len(before)] == before, "its prompt begins with the whole of the first"
    stored = await cluster.http.get(f"{cluster.url}/v1/responses/{second['id']}")
    assert stored.json() == second
    await cluster.http.delete(f"{cluster.url}/v1/responses/{second['id']}")
    gone = await cluster.http.get(f"{cluster.url}/v1/responses/{second['id']}")
    assert gone.status_code == 404


async def test_a_response_that_is_not_to_be_stored_is_not(cluster):
    await cluster.start()
    answer = (await _posted(cluster, "responses", store=False)).json()
    more = await _posted(cluster, "responses", previous_response_id=answer["id"])
    assert more.status_code == 404
    assert more.json()["error"]["param"] == "previous_response_id"


async def test_generate_tells_tokens_by_their_ids_with_logprobs_and_usage(cluster):
    await cluster.start()
    asked = {"request_id": "mine", "return_token_ids": True}
    answer = (await _posted(cluster, "generate", **asked)).json()
    (choice,) = answer["choices"]
    assert answer["request_id"] == "mine"
    assert answer["prompt_token_ids"] == BODIES["generate"]["token_ids"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == len(LONG) + 1
    assert answer["usage"]["completion_tokens"] == len(LONG) + 1
    assert "text" not in choice


async def test_generate_fills_the_context_when_no_length_is_given(cluster):
    await cluster.start(replicas=1)
    await _posted(cluster, "generate")
    (body,) = cluster.replicas[0].bodies
    left = 4096 - len(BODIES["generate"]["token_ids"])
    assert body["sampling_params"]["max_tokens"] == left


async def test_generate_reads_numbers_as_vllm_reads_them(cluster, fault):
    await cluster.start()
    numbers = {"n": "2", "max_tokens": 5.0, "min_tokens": "1", "seed": "0"}
    params = BODIES["generate"]["sampling_params"] | numbers
    cluster.faults.append(fault("drop", 4))
    answer = await _posted(cluster, "generate", sampling_params=params)
    assert answer.status_code == 200, answer.text
    said = [bytes(one["token_ids"]) for one in answer.json()["choices"]]
    assert said == [b"asome", b"bsome"]
    sent = cluster.replicas[0].bodies + cluster.replicas[1].bodies
    first = next(one["sampling_params"] for one in sent if one["sampling_params"].get("n") == 2)
    whole = {"n": 2, "max_tokens": 5, "min_tokens": 1, "seed": 0}
    assert {name: first[name] for name in numbers} == whole


@pytest.mark.parametrize(
    "params", [{"max_tokens": "many"}, {"seed": 0.5}, {"prompt_logprob_token_ids": [[1]]}]
)
def test_what_generate_cannot_read_or_journal_the_replica_answers_by_itself(params):
    body = {**BODIES["generate"], "sampling_params": params}
    ask = ClientRequest.parse("generate", body, {}, max_choices=8)
    assert ask.unjournaled in params


def test_no_generate_request_of_an_offered_session_rules_out_or_forces_tokens():
    theirs = {"logit_bias": {"5": -100}, "min_tokens": 40, "max_tokens": "900"}
    body = {**BODIES["generate"], "sampling_params": theirs}
    fixed = FixedSettings(model="policy", max_tokens=20, sampling={"temperature": 0.7, "seed": 1})
    ask = ClientRequest.parse("generate", body, {}, max_choices=8).under(fixed)
    place = SimpleNamespace(model="policy", max_model_len=4096)
    params = generate_request(ask, place, logprobs=True, interval=None)["sampling_params"]
    assert params == {**UNMASKED, "temperature": 0.7, "seed": 1, "max_tokens": 20, "logprobs": 0}


@pytest.mark.parametrize("door", PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_session_records_what_any_door_said(cluster, door, stream):
    await cluster.start()
    made = (await cluster.http.post(f"{cluster.url}/v1/sessions", json={})).json()
    body = {"model": MODEL, **BODIES[door], "stream": stream}
    headers = {"x-session-id": made["id"]}
    await cluster.http.post(cluster.url + PATHS[door], json=body, headers=headers)
    kept = (await cluster.http.get(f"{cluster.url}/v1/sessions/{made['id']}")).json()
    (trajectory,) = kept["trajectories"]
    assert bytes(t for t in trajectory["response_token_ids"] if t < 256).decode() == LONG
    assert len(trajectory["behaviour_logprobs"]) == len(LONG) + 1
    assert all(value < 0 for value in trajectory["behaviour_logprobs"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_errors_have_the_form_of_their_door(cluster, fault, stream):
    await cluster.start(max_retries=0)
    refused = await _posted(cluster, "messages", temperature=-1, stream=stream)
    assert refused.status_code == 400
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert "temperature" in refused.json()["error"]["message"]
    cluster.faults.append(fault("drop", after=5 if stream else 0))
    lost = await _posted(cluster, "messages", stream=stream)
    error = _events(lost)[-1][1] if stream else lost.json()
    assert error["error"]["type"] == "overloaded_error"
    cluster.faults.append(fault("drop", after=5 if stream else 0))
    lost = await _posted(cluster, "responses", stream=stream)
    told = _events(lost)[-1][1] if stream else lost.json()
    assert told["error"]["type"] == "upstream_failed"
    if stream:
        assert told["type"] == "error"
        assert told["sequence_number"] == len(_events(lost)) - 1


@pytest.mark.parametrize("door", ["messages", "responses", "generate"])
async def test_streams_by_choice_are_for_chats(cluster, door):
    await cluster.start()
    refused = await _posted(cluster, door, stream=True, stream_by="choice")
    assert refused.status_code == 400
    assert "stream_by" in refused.text


@pytest.mark.parametrize(
    "tools",
    [5, "x", [None], [{"type": "custom"}], [{"type": "namespace", "name": "a", "tools": 1}]],
)
async def test_tools_of_any_form_are_the_replicas_to_judge(cluster, tools):
    await cluster.start()
    assert (await _posted(cluster, "responses", tools=tools)).status_code == 200


async def test_sampling_parameters_that_are_none_are_the_replicas_to_judge(cluster):
    await cluster.start()
    refused = await _posted(cluster, "generate", sampling_params="x", stream=False)
    assert refused.status_code != 500


@pytest.mark.parametrize("door", PATHS)
async def test_a_session_that_floods_a_door_is_told_its_bound_and_counted(
    cluster, fault, door, monkeypatch
):
    ended = []
    counter = RouterMetrics.requests
    monkeypatch.setattr(counter, "inc", lambda value=1, tags=None: ended.append(tags))
    await cluster.start(replicas=1, max_open_calls=1)
    session, other = [
        (await cluster.http.post(f"{cluster.url}/v1/sessions")).json()["id"] for _ in range(2)
    ]
    cluster.faults.append(fault("stall", after=1))
    asked = {"url": cluster.url + PATHS[door], "json": {"model": MODEL, **BODIES[door]}}
    flooding = {"authorization": f"Bearer {session}"}
    first = asyncio.create_task(cluster.http.post(**asked, headers=flooding))
    await cluster.stalled()
    refused = await cluster.http.post(**asked, headers=flooding)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    error = refused.json()["error"]
    assert "has 1 open calls" in error["message"]
    assert "max_open_calls" in error["message"]
    if door == "messages":
        assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")
    else:
        assert (error["type"], error["param"]) == ("too_many_session_calls", "x-session-id")
    assert [tags["status"] for tags in ended] == ["too_many_session_calls"]
    served = await cluster.http.post(**asked, headers={"authorization": f"Bearer {other}"})
    assert served.status_code == 200, "another session has calls of its own"
    await cancel(first)
