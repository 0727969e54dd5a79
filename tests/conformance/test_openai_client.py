"""The `openai` client in every mode, against a router over a real engine."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from services.protocol.router import REPLICA_HEADER
from tests.conformance.conftest import until_busy, until_idle
from tests.conformance.saying import ASK, STRICT_TOOLS, call, says
from tests.router.vllm_process import MODEL

CHAT = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12}
THOUGHT = "<think>grüße</think>"
TALKATIVE = {**CHAT, "temperature": 1, "seed": 3, "max_tokens": 350}
"""A grammar of tool calls allows blanks, which an untrained model likes to write."""


async def test_streamed_and_whole_answers_are_the_same(router):
    chats, completions = router.client.chat.completions, router.client.completions
    whole = await chats.create(**CHAT)
    events = [event async for event in await chats.create(**CHAT, stream=True)]
    assert "".join(e.choices[0].delta.content or "" for e in events) == (
        whole.choices[0].message.content
    )
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    asked = {"model": MODEL, "prompt": "return max(a", "temperature": 0}
    text = (await completions.create(**asked)).choices[0].text
    parts = [e.choices[0].text async for e in await completions.create(**asked, stream=True)]
    assert "".join(parts) == text


async def test_usage_is_told_at_the_end_of_a_stream(router):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = [e async for e in await router.client.chat.completions.create(**CHAT, **options)]
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == 12
    assert all(event.usage is None for event in events[:-1])


async def test_several_answers_have_their_own_index_and_seeds_repeat_them(router):
    asked = {**CHAT, "n": 3, "seed": 5, "temperature": 1, "extra_body": {"ignore_eos": True}}
    chats = router.client.chat.completions
    one, other = await chats.create(**asked), await chats.create(**asked)
    texts = [choice.message.content for choice in one.choices]
    assert [choice.index for choice in one.choices] == [0, 1, 2]
    assert texts == [choice.message.content for choice in other.choices]
    assert len(set(texts)) == 3
    assert one.usage.completion_tokens == 36


async def test_logprobs_have_as_many_alternatives_as_were_asked_for(router):
    answer = await router.client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 12
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(other.logprob for other in entry.top_logprobs)


async def test_a_stop_string_ends_the_answer_before_it(router):
    asked = {**CHAT, "extra_body": says("return max(a, 7)")}
    answer = await router.client.chat.completions.create(**asked, stop=[", "])
    assert answer.choices[0].message.content == "return max(a"
    assert answer.choices[0].finish_reason == "stop"


class Verdict(BaseModel):
    """What the client asks to get."""

    model_config = ConfigDict(extra="forbid")
    right: bool


async def test_structured_output_comes_back_as_an_object(router):
    asked = CHAT | {"max_tokens": 60, "response_format": Verdict}
    whole = await router.client.chat.completions.parse(**asked)
    assert isinstance(whole.choices[0].message.parsed, Verdict)
    async with router.client.chat.completions.stream(**asked) as events:
        streamed = await events.get_final_completion()
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_tools_that_the_model_chooses_come_with_its_reasoning(parsing, stream):
    said = says(f"{THOUGHT}{call('add', a=1)}\n{call('halve', a=2)}")
    asked = {**CHAT, "tools": STRICT_TOOLS, "extra_body": said}
    answer = await _answer(parsing.client, asked, stream)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [_named(one) for one in message.tool_calls] == [("add", {"a": 1}), ("halve", {"a": 2})]
    assert len({one.id for one in message.tool_calls}) == 2
    assert message.model_extra["reasoning"] == "grüße"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_tool_that_is_named_is_called(calling, stream):
    named = {"type": "function", "function": {"name": "halve"}}
    asked = {**TALKATIVE, "tools": STRICT_TOOLS, "tool_choice": named}
    answer = await _answer(calling.client, asked, stream)
    ((name, arguments),) = map(_named, answer.choices[0].message.tool_calls)
    assert name == "halve"
    assert arguments["a"] in (1, 2)


async def test_some_tool_is_called_where_one_is_required(calling):
    asked = {**TALKATIVE, "tools": STRICT_TOOLS, "n": 8, "tool_choice": "required"}
    answer = await calling.client.chat.completions.create(**asked)
    # The model is random, and may still be writing another call when its tokens are spent.
    ended = [one.message.tool_calls for one in answer.choices if one.finish_reason != "length"]
    assert ended, answer
    assert all(ended), answer
    assert {_named(one)[0] for calls in ended for one in calls} <= {"add", "halve"}


def _named(one):
    return one.function.name, json.loads(one.function.arguments)


async def _answer(client, asked, stream):
    if not stream:
        return await client.chat.completions.create(**asked)
    async with client.chat.completions.stream(**asked) as events:
        return await events.get_final_completion()


BAD = [
    ({"temperature": -1}, openai.BadRequestError, 400, "BadRequestError"),
    ({"messages": []}, openai.BadRequestError, 400, "BadRequestError"),
    ({"n": 0}, openai.BadRequestError, 400, "BadRequestError"),
    ({"model": "other"}, openai.NotFoundError, 404, "NotFoundError"),
]


@pytest.mark.parametrize(("extra", "kind", "status", "type_"), BAD)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_errors_are_the_clients_own_exceptions(router, extra, kind, status, type_, stream):
    with pytest.raises(kind) as refusal:
        await router.client.chat.completions.create(**CHAT | extra, stream=stream)
    assert (refusal.value.status_code, refusal.value.type) == (status, type_)
    assert refusal.value.body["message"]


async def test_an_endpoint_that_is_not_served_is_named(router):
    with pytest.raises(
        openai.NotFoundError, match="no POST /v1/images/generations here"
    ) as refusal:
        await router.client.images.generate(model=MODEL, prompt="hello")
    assert refusal.value.type == "Not Found"


async def test_models_are_listed(router):
    assert [model.id async for model in router.client.models.list()] == [MODEL]


async def test_the_raw_response_names_the_replica(router):
    raw = await router.client.chat.completions.with_raw_response.create(**CHAT)
    assert raw.headers[REPLICA_HEADER] == "only"
    assert raw.parse().choices[0].finish_reason == "length"
    streaming = router.client.chat.completions.with_streaming_response
    async with streaming.create(**CHAT, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


LONG = {**CHAT, "max_tokens": 450, "extra_body": {"ignore_eos": True}}


async def test_a_stream_that_is_closed_early_ends_the_work(router):
    stream = await router.client.chat.completions.create(**LONG, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await until_idle(router)


async def test_a_call_that_is_cancelled_ends_the_work(router):
    call = asyncio.create_task(router.client.chat.completions.create(**LONG))
    await until_busy(router)
    call.cancel()
    await until_idle(router)
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_the_client_without_asyncio_gets_the_same(router):
    def ask():
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(**CHAT).choices[0].message.content
            events = list(client.chat.completions.create(**CHAT, stream=True))
            return whole, "".join(event.choices[0].delta.content or "" for event in events)

    whole, streamed = await asyncio.to_thread(ask)
    assert whole == streamed
