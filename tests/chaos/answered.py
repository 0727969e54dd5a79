"""An answer as its client got it, streamed or whole, in one form that can be compared."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.chaos.mixture import Ask

_LOGPROB_GAP = 1e-4


@dataclass
class Choice:
    """One choice, put together from the events of a stream or taken from a whole answer.

    Attributes:
        text: content or text.
        calls: names and arguments of tool calls.
        finish: finish reason and stop reason.
        token_ids: what was generated.
        logprobs: of each token, from the trajectory.
        shown: logprobs as OpenAI's field has them.
        spans: which replica made which tokens.
    """

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: tuple[str, Any] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)
    spans: list[list[Any]] = field(default_factory=list)

    @property
    def replicas(self) -> list[str]:
        """Who made it, in order."""
        return [name for _, _, _, name in self.spans]

    def add(self, choice: dict[str, Any]) -> None:
        """Take what one event, or the whole answer, says of this choice."""
        said = choice.get("delta") or choice.get("message") or {}
        self.text += choice.get("text") or said.get("content") or ""
        called = [call["function"] for call in said.get("tool_calls") or ()]
        self.calls += [(call["name"], call["arguments"]) for call in called]
        if (columns := choice.get("logprobs")) is not None:
            entries = columns.get("content")
            self.shown += (
                columns["token_logprobs"]
                if entries is None
                else [entry["logprob"] for entry in entries]
            )
        if choice.get("finish_reason") is not None:
            self.finish = choice["finish_reason"], choice.get("stop_reason")
            trajectory = choice["trajectory"]
            self.token_ids, self.logprobs = trajectory["token_ids"], trajectory["logprobs"]
            self.spans = trajectory["spans"]


@dataclass
class Answer:
    """All choices of one request, and the tokens that it was told to have cost."""

    choices: list[Choice]
    told_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Of all choices, so far."""
        return sum(len(choice.token_ids) for choice in self.choices)

    def check(self) -> None:
        """Every choice has an end, and every token is accounted for."""
        for choice in self.choices:
            assert choice.finish is not None
            assert len(choice.logprobs) == len(choice.token_ids)
            assert [end for _, _, end, _ in choice.spans][-1] == len(choice.token_ids)
            assert choice.shown in ([], choice.logprobs)
        assert self.told_tokens == self.tokens


async def read(ask: Ask, response: aiohttp.ClientResponse) -> AsyncIterator[Answer]:
    """The answer as it grows; the last one is all of it.

    Raises:
        AssertionError: an error, or an end before the end.
        aiohttp.ClientError: the connection broke.
    """
    answer = Answer([Choice() for _ in range(ask.body.get("n", 1))])
    if not ask.body.get("stream"):
        _take(answer, await response.json())
        yield answer
        return
    ended = False
    async for line in response.content:
        if line.startswith(b"data: [DONE]"):
            ended = True
        elif line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            assert "error" not in event, event
            _take(answer, event)
            yield answer
    if not ended:
        raise aiohttp.ClientPayloadError("the stream ended without [DONE]")
    yield answer


def _take(answer: Answer, part: dict[str, Any]) -> None:
    for choice in part["choices"]:
        answer.choices[choice["index"]].add(choice)
    if part.get("usage"):
        answer.told_tokens = part["usage"]["completion_tokens"]


def check_same(ask: Ask, answer: Answer, expected: Answer) -> int:
    """The answer is the expected one; how many of its choices several replicas made."""
    continued = 0
    for ours, theirs in zip(answer.choices, expected.choices, strict=True):
        continued += len(set(ours.replicas)) > 1
        if ask.goes_on_sampling and (len(ours.spans) > 1 or len(theirs.spans) > 1):
            # A later part has a random stream of its own; what came before it is the same.
            # A busy machine may be silent for so long that undisturbed answers are cut, too,
            # and go on where they were.
            end = min(ours.spans[0][2], theirs.spans[0][2])
            assert ours.token_ids[:end] == theirs.token_ids[:end], ask
            assert len(ours.token_ids) == len(theirs.token_ids), ask
            continue
        assert ours.token_ids == theirs.token_ids, ask
        seen, expected_to_be = ((one.text, one.calls, one.finish) for one in (ours, theirs))
        assert seen == expected_to_be, ask
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=_LOGPROB_GAP), ask
    return continued
