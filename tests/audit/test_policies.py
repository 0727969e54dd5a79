"""The servers that answer an audited environment or agent, asked by the clients that those use."""

from collections.abc import AsyncIterator

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError

from millrace_tools.audit.answers import always, refusing
from millrace_tools.audit.policy.forwarded_policy import ForwardedPolicy
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.audit.policy.wire_formats import chunk_of, shown_in
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
        with pytest.raises(BadRequestError, match="ask without `stream`"):
            await client.responses.create(model="any", input="room 1?", stream=True)
    assert HEARD[0] == HEARD[2] == ASKED
    assert HEARD[1] == ASKED[1:]
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
