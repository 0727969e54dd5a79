"""Calls about sessions outlast a router that is away for a while."""

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.rollout import RolloutFailed
from services.orchestrator.rollout.session_client import SessionClient

FOREVER_S = 300.0


@asynccontextmanager
async def client(url: str) -> AsyncIterator[SessionClient]:
    config = OrchestratorConfig(router_url=url, backoff_s=0.01, backoff_max_s=0.02)
    async with aiohttp.ClientSession() as http:
        yield SessionClient(http, config)


@asynccontextmanager
async def sessions(
    failures: int, status: int = 503
) -> AsyncIterator[tuple[SessionClient, Counter[str]]]:
    """A client of a router that refuses so many calls of each kind, and how often it was asked."""
    asked: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        call = f"{request.method} {request.path}"
        asked[call] += 1
        if asked[call] <= failures:
            return web.json_response({"error": {"message": "no"}}, status=status)
        said = {"id": "sess_1", "calls": {"first": 1}, "unrecorded_calls": 0, "trajectories": []}
        return web.json_response(said)

    app = web.Application()
    app.router.add_route("*", "/v1/{path:.*}", answer)
    async with TestServer(app) as server, client(f"http://127.0.0.1:{server.port}") as made:
        yield made, asked


async def test_a_session_is_made_finished_and_read_once_the_router_is_back() -> None:
    async with sessions(failures=2) as (made, asked):
        assert await made.create({}, timeout_s=FOREVER_S) == "sess_1"
        assert (await made.finish("sess_1", timeout_s=FOREVER_S)).calls == 1
    calls = ("POST /v1/sessions", "POST /v1/sessions/sess_1/finish", "GET /v1/sessions/sess_1")
    assert asked == dict.fromkeys(calls, 3)


async def test_a_look_at_a_session_and_its_deletion_are_tried_once() -> None:
    async with sessions(failures=1) as (made, asked):
        with pytest.raises(RolloutFailed, match="session_http_503"):
            await made.activity("sess_1")
        await made.delete("sess_1")
    assert set(asked.values()) == {1}


async def test_a_session_that_the_router_does_not_know_is_not_asked_for_again() -> None:
    async with sessions(failures=1, status=404) as (made, asked):
        with pytest.raises(RolloutFailed, match="session_http_404"):
            await made.finish("sess_1", timeout_s=FOREVER_S)
    assert set(asked.values()) == {1}


async def test_a_router_that_stays_away_is_given_up_in_time() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        async with client(f"http://127.0.0.1:{nobody.getsockname()[1]}") as made:
            with pytest.raises(RolloutFailed, match="connection"):
                await made.create({}, timeout_s=0.05)
