"""The client of an environment: whatever a call asks for, the run sets how the policy answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from services.orchestrator.rollout.policy_client import PolicyCalls, connections, policy_client
from services.orchestrator.rollout.rollout import WHOLE_DISTRIBUTION
from services.protocol.errors import InvalidInput

FIXED = {"model": "tiny", "temperature": 0.7, **WHOLE_DISTRIBUTION}
HELLO = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client() -> AsyncIterator[tuple[AsyncOpenAI, list[dict[str, Any]]]]:
    """A client of an episode, and the bodies of its calls."""
    got: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.json_response({"id": "one"})

    app = web.Application()
    app.router.add_post("/v1/{path:.*}", answer)
    async with TestServer(app) as server:
        calls = PolicyCalls(
            url=f"http://127.0.0.1:{server.port}",
            session={"x-session-id": "sess_1"},
            api_key="none",
            fixed=FIXED,
            max_tokens=9,
            seed=2**31 - 1,
            timeout_s=60.0,
        )
        yield policy_client(connections(), calls), got


async def test_the_run_sets_how_responses_are_sampled() -> None:
    async with client() as (policy, got):
        await policy.responses.create(model="gpt", input="hello", temperature=0.0)
        await policy.responses.create(model="gpt", input="hello", max_output_tokens=5)
    given = FIXED | {"input": "hello"}
    assert got == [
        given | {"max_output_tokens": 9, "seed": 2**31 - 1},
        given | {"max_output_tokens": 5, "seed": 0},
    ]


async def test_the_body_that_a_call_adds_changes_nothing_of_it() -> None:
    async with client() as (policy, got):
        await policy.chat.completions.create(
            model="gpt",
            messages=HELLO,
            max_completion_tokens=7,
            extra_body={"top_k": 5, "seed": 3, "max_tokens": 900, "user": "me"},
        )
    bound = {"max_tokens": 7, "seed": 2**31 - 1}
    assert got == [FIXED | bound | {"messages": HELLO, "user": "me"}]


async def test_a_call_can_rule_out_or_force_no_tokens() -> None:
    async with client() as (policy, got):
        masks = {"allowed_token_ids": [3], "bad_words": ["no"], "min_tokens": 4}
        await policy.chat.completions.create(
            model="gpt", messages=HELLO, logit_bias={"5": 100}, extra_body=masks
        )
    assert got == [FIXED | {"max_tokens": 9, "seed": 2**31 - 1, "messages": HELLO}]


async def test_copies_of_a_client_make_calls_of_the_same_episode() -> None:
    async with client() as (policy, got):
        for copied in (policy, policy.with_options(timeout=30.0), policy.copy(max_retries=0)):
            await copied.chat.completions.create(model="gpt", messages=HELLO)
    assert [body.pop("seed") for body in got] == [2**31 - 1, 0, 1]
    assert got == [FIXED | {"max_tokens": 9, "messages": HELLO}] * 3


@pytest.mark.parametrize("path", ["/messages", "chat/completions/tokens", "/invocations"])
async def test_a_call_that_the_run_cannot_bind_is_refused(path: str) -> None:
    async with client() as (policy, got):
        with pytest.raises(InvalidInput, match=r"use client\.chat\.completions"):
            await policy.post(path, cast_to=object, body={"messages": HELLO})
        with pytest.raises(InvalidInput, match=r"use client\.chat\.completions"):
            await policy.post("/chat/completions", cast_to=object, body=[HELLO])
    assert got == []
