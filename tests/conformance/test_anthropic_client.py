"""The `anthropic` client, unchanged, against a router over a real engine."""

import asyncio

import anthropic
import pytest

from services.protocol.router import SESSION_HEADER
from tests.conformance.conftest import until_idle
from tests.conformance.saying import ASK
from tests.router.vllm_process import MODEL

ASKED = {
    "model": MODEL,
    "messages": ASK,
    "max_tokens": 12,
    "extra_body": {"temperature": 0},  # the client has no name for it any more
}
TOOL = {
    "name": "add",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
NAMED = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "add"}, "max_tokens": 350}


@pytest.fixture
async def claude(calling):
    """Without retries, so that every error is seen."""
    async with anthropic.AsyncAnthropic(
        base_url=calling.url, api_key="none", max_retries=0, timeout=300
    ) as client:
        yield client


async def test_streamed_and_whole_messages_are_the_same(claude):
    whole = await claude.messages.create(**ASKED)
    async with claude.messages.stream(**ASKED) as stream:
        text = "".join([part async for part in stream.text_stream])
        streamed = await stream.get_final_message()
    assert whole.content[0].text == text == streamed.content[0].text != ""
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 12
    assert streamed.role == "assistant"


async def test_a_tool_is_used_and_its_result_goes_back(claude):
    """What the model writes for arguments is as random as it is; test_doors.py compares streams."""
    answer = await claude.messages.create(**{**ASKED, **NAMED})
    (use,) = answer.content
    assert (use.type, use.name) == ("tool_use", "add")
    assert isinstance(use.input, dict)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "2"}
    said = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    again = await claude.messages.create(**{**ASKED, "messages": [*ASK, *said], "tools": [TOOL]})
    assert again.usage.input_tokens > answer.usage.input_tokens


async def test_errors_are_those_that_the_client_knows(claude):
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as refused:
        await claude.messages.create(**{**ASKED, "max_tokens": 0})
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError, match="nobody"):
        await claude.messages.create(**{**ASKED, "model": "nobody"})


async def test_tokens_are_counted(claude):
    counted = await claude.messages.count_tokens(model=MODEL, messages=ASK)
    answer = await claude.messages.create(**ASKED)
    assert counted.input_tokens == answer.usage.input_tokens


async def test_a_client_that_goes_takes_its_answer_along(calling, claude):
    many = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 100, "maxItems": 100}
    long = {"output_config": {"format": {"type": "json_schema", "schema": many}}}
    asked = {**ASKED, "max_tokens": 400, "extra_body": {**ASKED.get("extra_body", {}), **long}}
    async with claude.messages.stream(**asked) as stream:
        await anext(aiter(stream))
    await until_idle(calling)


async def test_a_session_by_header_is_recorded(calling, claude):
    made = (await calling.http.post(f"{calling.url}/v1/sessions", json={})).json()
    await claude.messages.create(**ASKED, extra_headers={SESSION_HEADER: made["id"]})
    kept = (await calling.http.get(f"{calling.url}/v1/sessions/{made['id']}")).json()
    assert [len(one["response_token_ids"]) for one in kept["trajectories"]] == [12]


async def test_fifty_at_once_are_all_answered(claude):
    answers = await asyncio.gather(*(claude.messages.create(**ASKED) for _ in range(50)))
    assert all(answer.usage.output_tokens == 12 for answer in answers)
