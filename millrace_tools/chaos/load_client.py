"""A client under faults: the plain openai package with its own retries."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai

from millrace_tools.chaos.observation import Call
from services.retry import retrying

RETRIED = (
    openai.APIConnectionError,
    openai.InternalServerError,
    openai.NotFoundError,  # of a session that ended with its router: the client makes another
    httpx.HTTPError,
)
"""Errors that say nothing about the request itself: a client may retry."""

TIMEOUT_S = 180.0
LONG_S = 60.0
_PAUSE_S = 0.5
_TOKENS = 12
_TURNS = 2


class LoadClient:
    """Calls the router with one kind of call after another, and records the end of each.

    Whole answers, streams, and sessions of two turns that it finishes with a reward.
    """

    def __init__(
        self, url: str, key: str | None, clock: Callable[[], float], calls: list[Call]
    ) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=key or "none",
            timeout=TIMEOUT_S,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )
        self._url, self._clock, self._calls = url, clock, calls
        self._model = ""

    async def run(self, pause_s: float) -> None:
        """Call until cancelled, with a pause after each."""
        kinds = (("whole", self._whole), ("stream", self._stream), ("session", self._session))
        for kind, ask in itertools.cycle(kinds):
            await self._call(kind, ask)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def _call(self, kind: str, ask: Callable[[], Awaitable[None]]) -> None:
        sent, retries, problem = self._clock(), -1, ""

        async def attempt() -> None:
            nonlocal retries
            retries += 1
            await ask()

        try:
            await retrying(attempt, pauses=(_PAUSE_S,), on=RETRIED, timeout_s=TIMEOUT_S)
        except (*RETRIED, openai.APIError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:  # at the end of the campaign: after so long it is lost
            waited = self._clock() - sent
            if waited > LONG_S:
                self._record(kind, sent, retries, f"no answer in {waited:.0f} s, until the end")
            raise
        self._record(kind, sent, retries, problem)

    def _record(self, kind: str, sent: float, retries: int, problem: str) -> None:
        ended = self._clock()
        call = Call(sent_s=sent, ended_s=ended, kind=kind, retries=retries, problem=problem)
        self._calls.append(call)

    async def _whole(self) -> None:
        answer = await self._client.chat.completions.create(**await self._question())
        if answer.choices[0].finish_reason is None:
            raise ValueError("an answer without an end")

    async def _stream(self) -> None:
        ended = False
        pieces = await self._client.chat.completions.create(**await self._question(), stream=True)
        async for piece in pieces:
            ended = ended or any(choice.finish_reason for choice in piece.choices)
        if not ended:
            raise ValueError("a stream without an end")

    async def _session(self) -> None:
        session = (await self._post("/v1/sessions", {}))["id"]
        headers = {"x-session-id": session}
        question = await self._question()
        for _ in range(_TURNS):
            answer = await self._client.chat.completions.create(**question, extra_headers=headers)
            turns = question["messages"]
            answered = {"role": "assistant", "content": answer.choices[0].message.content or ""}
            question["messages"] = [*turns, answered, {"role": "user", "content": "again"}]
        finished = await self._post(f"/v1/sessions/{session}/finish", {"reward": 1.0})
        if sum(finished["calls"].values()) < _TURNS:
            raise ValueError(f"a session of {_TURNS} calls recorded {finished['calls']}")

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._client.post(self._url + path, body=body, cast_to=httpx.Response)
        found: dict[str, Any] = answer.json()
        return found

    async def _question(self) -> dict[str, Any]:
        if not self._model:
            self._model = (await self._client.models.list()).data[0].id
        turn = {"role": "user", "content": "a plus b"}
        return {"model": self._model, "messages": [turn], "max_tokens": _TOKENS}
