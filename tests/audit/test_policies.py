"""The servers that answer an audited environment or agent, asked by the clients that those use."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, BadRequestError

from millrace_tools.audit.answers import always, refusing
from millrace_tools.audit.policy.forwarded_policy import ForwardedPolicy
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.audit.policy.streamed import chunk_of, stream_of
from millrace_tools.audit.policy.wire_formats import MESSAGES, RESPONSES, shown_in
from tests.audit.scripted import Scripted

ASKED = [{"role": "system", "content": "be short"}, {"role": "user", "content": "room 1?"}]
HEARD: list[list[dict]] = []


def remembered(messages: list[dict]) -> str:
    HEARD.append(messages)
    return "k1037"


@pytest.fixture
async def policy() -> AsyncIterator[ScriptedPolicy]:
    HEARD.clear()
    async with ScriptedPolicy() as made:
        yield made


def client_of(url: str, key: str) -> AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http)


async def test_every_api_of_openai_is_answered(policy: ScriptedPolicy) -> None:
    episode = policy.begin(remembered)
    async with client_of(policy.url, episode) as client:
        chat = await client.chat.completions.create(model="any", messages=ASKED)
        assert chat.choices[0].message.content == "k1037"
        text = await client.completions.create(model="any", prompt="room 1?")
        assert text.choices[0].text == "k1037"
        response = await client.responses.create(
            model="any", instructions="be short", input="room 1?"
        )
        assert response.output_text == "k1037"
        stream = await client.chat.completions.create(model="any", messages=ASKED, stream=True)
        said = [chunk.choices[0].delta.content async for chunk in stream]
        assert said == ["k1037"]
        async with client.responses.stream(model="any", input="room 1?") as events:
            parts = [one.delta async for one in events if one.type == "response.output_text.delta"]
            assert parts == [(await events.get_final_response()).output_text] == ["k1037"]
    assert HEARD[0] == HEARD[2] == ASKED
    assert HEARD[1] == HEARD[4] == ASKED[1:]
    assert policy.heard(episode).calls == 5


async def test_messages_are_answered(policy: ScriptedPolicy) -> None:
    episode = policy.begin(remembered)
    content = [{"type": "text", "text": "room 1?"}]
    body = {"model": "any", "max_tokens": 9, "system": "be short"}
    body |= {"messages": [{"role": "user", "content": content}]}
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(
            f"{policy.url}/v1/messages", json=body, headers={"x-api-key": episode}
        )
    assert answer.json()["content"] == [{"type": "text", "text": "k1037"}]
    assert HEARD == [ASKED]
    assert policy.heard(episode).said == "k1037"


async def test_messages_are_streamed(policy: ScriptedPolicy) -> None:
    key = policy.begin(remembered)
    async with AsyncAnthropic(base_url=policy.url, api_key=key, max_retries=0) as client:
        asked = {"model": "any", "max_tokens": 9, "messages": ASKED[1:]}
        async with client.messages.stream(**asked) as events:
            assert [text async for text in events.text_stream] == ["k1037"]
            said = await events.get_final_message()
    assert (said.content[0].text, said.stop_reason) == ("k1037", "end_turn")


def events_of(stream: bytes) -> list[dict]:
    lines = (line for line in stream.decode().splitlines() if line.startswith("data: "))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_thoughts_and_calls_of_tools_are_streamed_with_the_words_around_them() -> None:
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {"room": 1}}
    other = {"type": "redacted_thinking", "data": "x"}
    content = [{"type": "thinking", "thinking": "hm"}, other, {"type": "text", "text": "so"}, call]
    message = {"id": "m", "type": "message", "content": content, "stop_reason": "tool_use"}
    told = events_of(stream_of(MESSAGES, message))
    begun = [one["content_block"] for one in told if one["type"] == "content_block_start"]
    assert [one["type"] for one in begun] == [one["type"] for one in content]
    deltas = [one["delta"] for one in told if one["type"] == "content_block_delta"]
    said = {one.pop("type"): next(iter(one.values())) for one in deltas}
    assert (said["thinking_delta"], said["text_delta"]) == ("hm", "so")
    assert json.loads(said["input_json_delta"]) == {"room": 1}
    assert (told[-2]["delta"]["stop_reason"], told[-1]["type"]) == ("tool_use", "message_stop")


def test_items_of_a_response_are_streamed_whatever_they_are() -> None:
    output = [
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "hm"}]},
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "id": "u", "call_id": "d", "name": "sh", "input": "ls"},
        {"type": "web_search_call", "id": "w"},
    ]
    tools = [{"type": "custom", "name": "sh"}]
    answer = {"id": "resp", "status": "completed", "output": output, "tools": tools}
    told = events_of(stream_of(RESPONSES, answer))
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    items = [one["item"] for one in told if one["type"] == "response.output_item.done"]
    assert told[-1]["type"] == "response.completed"
    assert told[-1]["response"]["output"] == items
    assert [one["type"] for one in items] == [one["type"] for one in output]
    assert (items[2]["arguments"], items[3]["input"]) == ("{}", "ls")


async def test_rewards_are_added_and_end_with_their_episode(policy: ScriptedPolicy) -> None:
    episode = policy.begin(always("a"))
    assert policy.heard(episode).reward is None
    async with httpx.AsyncClient(trust_env=False) as http:
        for reward in (0.5, 0.25):
            path = f"{policy.url}/v1/sessions/{episode}/rewards"
            assert (await http.post(path, json={"reward": reward})).status_code == 200
    assert policy.heard(episode).reward == 0.75
    policy.end(episode)
    assert policy.posted(episode) is None


async def test_a_refusal_is_an_error_that_is_not_asked_again(policy: ScriptedPolicy) -> None:
    async with client_of(policy.url, policy.begin(refusing())) as client:
        with pytest.raises(BadRequestError, match="refused on purpose"):
            await client.chat.completions.create(model="any", messages=ASKED)


async def test_a_recorded_episode_is_answered_without_the_server() -> None:
    async with (
        Scripted(lambda messages: "first") as server,
        ForwardedPolicy(server.url, "m", "none") as model,
    ):
        episode = model.begin()
        async with client_of(model.url, episode) as client:
            await client.chat.completions.create(model="any", messages=ASKED)
        again = model.begin(tuple(model.exchanges[episode]))
        async with client_of(model.url, again) as client:
            answer = await client.chat.completions.create(model="any", messages=ASKED)
            assert answer.choices[0].message.content == "first"
            with pytest.raises(BadRequestError, match="had no such call"):
                await client.chat.completions.create(model="any", messages=ASKED)
        assert len(server.conversations) == 1


def test_calls_of_tools_are_streamed_with_their_numbers_and_shown_without_a_text() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    (choice,) = chunk_of(answer)["choices"]
    assert choice["delta"]["tool_calls"] == [{"index": 0} | call]
    assert shown_in(answer) == "look {}"
