"""Server-sent events as they are on the wire, read with `httpx`."""

import json

import pytest

from services.protocol.router import CHOICE_HEADER, REPLICA_HEADER
from tests.conformance.conftest import until_idle
from tests.conformance.saying import ASK
from tests.router.vllm_process import MODEL

CHAT = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12, "stream": True}
LONG = {**CHAT, "max_tokens": 450, "ignore_eos": True}
TOLD = {"stream_options": {"include_usage": True}}


async def _raw(router, body):
    async with router.http.stream("POST", f"{router.url}/v1/chat/completions", json=body) as got:
        assert got.status_code == 200
        return got.headers, (await got.aread()).decode()


def _events(raw):
    """The data of all events but the end mark, whose framing must be exact."""
    assert raw.endswith("data: [DONE]\n\n")
    *events, end, nothing = raw.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_events_are_framed_and_ended_as_openai_does(router):
    headers, raw = await _raw(router, CHAT)
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert (headers[REPLICA_HEADER], headers[CHOICE_HEADER]) == ("only", "free")
    events = _events(raw)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    finished = [event["choices"][0]["finish_reason"] for event in events]
    assert finished == [None] * (len(events) - 1) + ["length"]


async def test_usage_comes_last_and_without_choices_and_only_if_asked_for(router):
    *events, last = _events((await _raw(router, CHAT | TOLD))[1])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert all(event.get("usage") is None for event in events)
    assert all("usage" not in event for event in _events((await _raw(router, CHAT))[1]))


async def test_several_answers_share_a_stream(router):
    body = CHAT | TOLD | {"n": 3, "temperature": 1, "seed": 1}
    events = _events((await _raw(router, body))[1])
    choices = [choice for event in events for choice in event["choices"]]
    ended = [choice["index"] for choice in choices if choice["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]
    assert sum(choice["delta"].get("role") == "assistant" for choice in choices) == 3


async def test_an_error_before_the_stream_is_a_response_of_its_own(router):
    answer = await router.http.post(
        f"{router.url}/v1/chat/completions", json=CHAT | {"temperature": -1}
    )
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("events", [0, 1, 5])
async def test_a_client_that_leaves_ends_the_work(router, events):
    url = f"{router.url}/v1/chat/completions"
    async with router.http.stream("POST", url, json=LONG) as response:
        parts = response.aiter_raw()
        for _ in range(events):
            await anext(parts)
    await until_idle(router)
