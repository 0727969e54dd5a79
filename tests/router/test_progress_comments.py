"""A stream by choice tells its client that its request makes progress before a choice is whole."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from services.protocol.router import PROGRESS_S
from services.router.http import progress_comments
from services.router.http.progress_comments import commented
from tests.orchestrator.virtual_clock import run_virtually

BODY = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "hi"}],
    "n": 2,
    "stream": True,
    "stream_by": "choice",
}


@dataclass
class Answer:
    """Keeps the comments with their times."""

    comments: list[tuple[float, str]] = field(default_factory=list)

    async def comment(self, text: str) -> None:
        self.comments.append((asyncio.get_running_loop().time(), text))


def comments(states: list[tuple[bool, int]], *, by: str = "choice") -> list[tuple[float, str]]:
    """Those of a request that waits or not, and has so many tokens, a `PROGRESS_S` each."""

    async def stream() -> list[tuple[float, str]]:
        tokens: list[int] = []
        request: Any = SimpleNamespace(
            ask=SimpleNamespace(stream_by=by),
            waits=True,
            journals=[SimpleNamespace(token_ids=tokens)],
        )
        answer: Any = Answer()
        async with commented(request, answer):
            await asyncio.sleep(PROGRESS_S / 2)
            for request.waits, made in states:
                tokens[:] = range(made)
                await asyncio.sleep(PROGRESS_S)
        await asyncio.sleep(10 * PROGRESS_S)
        made: list[tuple[float, str]] = answer.comments
        return made

    return run_virtually(stream)


def test_a_request_that_waits_or_makes_tokens_is_told_of() -> None:
    states = [(True, 0), (True, 0), (False, 16), (False, 48)]
    said = ["0 tokens", "0 tokens", "16 tokens", "48 tokens"]
    assert comments(states) == [((1 + i) * PROGRESS_S, text) for i, text in enumerate(said)]


def test_nothing_is_said_of_one_that_makes_no_tokens_where_it_should() -> None:
    states = [(False, 16), (False, 16), (False, 16), (True, 16), (False, 17)]
    said = {1: "16 tokens", 4: "16 tokens", 5: "17 tokens"}
    assert comments(states) == [(i * PROGRESS_S, text) for i, text in said.items()]


def test_a_stream_of_tokens_needs_no_comments() -> None:
    assert comments([(True, 0), (False, 9)], by="token") == []


async def test_the_comments_come_over_http_while_a_replica_stands_still(
    cluster, fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the answer is as it would be without."""
    monkeypatch.setattr(progress_comments, "PROGRESS_S", 0.01)
    await cluster.start(first_token_s=1.0)
    cluster.faults.append(fault("stall", 0))
    url = f"{cluster.url}/v1/chat/completions"
    async with cluster.http.stream("POST", url, json=BODY) as got:
        assert got.status_code == 200
        lines = [line async for line in got.aiter_lines() if line]
    said = [line for line in lines if line.startswith(":")]
    assert lines[0] == ": 0 tokens"
    assert len(said) > 3
    assert len([line for line in lines if line.startswith('data: {"id"')]) == 2
    assert lines[-1] == "data: [DONE]"


async def test_an_error_after_a_comment_is_an_event_with_its_status(
    cluster, fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_comments, "PROGRESS_S", 0.01)
    await cluster.start(replicas=1, first_token_s=0.5, max_retries=0)
    cluster.faults.append(fault("stall", 0))
    url = f"{cluster.url}/v1/chat/completions"
    async with cluster.http.stream("POST", url, json=BODY) as got:
        lines = [line async for line in got.aiter_lines() if line]
    assert lines[0] == ": 0 tokens"
    assert '"code":503' in lines[-2].replace(" ", "")
    assert lines[-1] == "data: [DONE]"
