"""Answers of the services, streamed by the plain openai package, with the time of each piece."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import openai

from millrace_tools.client.services_url import API_KEY

_TIMEOUT_S = 300.0
_PROMPT = "a times 7, plus b"
_REPLICA = "x-millrace-replica"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer.

    Attributes:
        arrivals_s: time of each piece, by the clock of `time.monotonic`.
        trajectory: token ids, logprobs, and the version and replica of each token.
    """

    arrivals_s: tuple[float, ...]
    trajectory: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Number of its tokens."""
        return len(self.trajectory["token_ids"])

    @property
    def versions(self) -> set[int]:
        """Policy versions that its tokens are labelled with."""
        return {version for version, *_ in self.trajectory["spans"]}

    @property
    def replicas(self) -> set[str]:
        """Replicas that its tokens are from."""
        return {replica for *_, replica in self.trajectory["spans"]}

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two pieces, seconds."""
        pairs = zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)

    @property
    def seconds(self) -> float:
        """From the first piece to the last."""
        return self.arrivals_s[-1] - self.arrivals_s[0] if self.arrivals_s else 0.0

    @property
    def gap_tokens(self) -> float:
        """Tokens that the answer would have got in its longest gap, at its pace outside of it."""
        outside_s = self.seconds - self.longest_gap_s
        return self.longest_gap_s * self.tokens / outside_s if outside_s > 0 else 0.0


class Answers:
    """Asks for answers of exactly so many tokens; a context manager.

    Args:
        url: of the router.
        model: served name.
    """

    def __init__(self, url: str, model: str) -> None:
        self._model = model
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=os.environ.get(API_KEY) or "none",
            timeout=_TIMEOUT_S,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def one(
        self, tokens: int, begun: Callable[[str], object] = lambda replica: None
    ) -> Answer:
        """One answer; `begun` is called with its replica when the first piece is there."""
        raw = await self._client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=[{"role": "user", "content": _PROMPT}],
            temperature=1.0,
            max_tokens=tokens,
            stream=True,
            extra_body={"return_trajectory": True, "ignore_eos": True},
        )
        arrivals: list[float] = []
        trajectory: dict[str, Any] = {}
        async for piece in raw.parse():
            for choice in piece.choices:
                trajectory = choice.model_dump().get("trajectory") or trajectory
                if choice.delta.content:
                    if not arrivals and begun is not None:
                        begun(raw.headers[_REPLICA])
                    arrivals.append(time.monotonic())
        return Answer(arrivals_s=tuple(arrivals), trajectory=trajectory)

    async def several(self, count: int, tokens: int) -> list[Answer]:
        """So many at once."""
        return list(await asyncio.gather(*(self.one(tokens) for _ in range(count))))

    @asynccontextmanager
    async def streaming(self, count: int, tokens: int) -> AsyncIterator[list[Answer]]:
        """Inside, so many answers are always open; those that ended are in the list.

        On exit the open ones are awaited.
        """
        found: list[Answer] = []
        over = asyncio.Event()

        async def ask() -> None:
            while not over.is_set():
                found.append(await self.one(tokens))

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(ask())
            try:
                yield found
            finally:
                over.set()
