"""One sample group is one streaming request to the router."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from pydantic import ValidationError

from services.http.api_key import key_header
from services.http.event_stream import END, EventStream, EventTooLong
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.failures import one_line
from services.orchestrator.rollout.limits import LimitReached, RolloutLimits, limited
from services.orchestrator.rollout.router_calls import interrupt_session
from services.protocol.reward.grader import AnyGrader
from services.protocol.reward.reward_service import Score
from services.protocol.router import (
    MIN_VERSION_HEADER,
    PRIORITY_HEADER,
    RETURN_TRAJECTORY,
    SESSION_HEADER,
    STREAM_BY,
    TrajectoryFields,
)
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory
from services.retry import retrying

UNAVAILABLE = (429, 502, 503, 504)
"""HTTP statuses of a router that is away or full."""
_FULL = "http_429"
WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent with every rollout: what a request leaves out, vLLM takes from the model's own
`generation_config.json`, and logprobs over a truncated or penalised distribution are not
those that the trainer computes."""


class Arrived(Protocol):
    """Called with the index of a choice and its trajectory as soon as it is finished."""

    def __call__(
        self,
        index: int,
        trajectory: Trajectory,
        score: Score | None = None,
        /,
        *,
        grader: AnyGrader | None = None,
    ) -> None:
        """`score` is given if the rollout has one already, `grader` if it is not the task's."""


class Sampler(Protocol):
    """Rolls out sample groups."""

    async def sample(self, request: "RolloutRequest", arrived: Arrived) -> None:
        """Roll out `request.n` choices.

        Raises:
            RolloutFailed: the group is not whole; the choices that arrived are.
        """

    async def interrupt(self, request: "RolloutRequest", min_version: int) -> int:
        """Interrupt a rollout in progress; it goes on from policy version `min_version`.

        Returns:
            Sessions of the router that could not be interrupted: they go on as they are.
        """


class RolloutFailed(RuntimeError):
    """A rollout ended without all its trajectories, or an episode without a result.

    Attributes:
        reason: short name for counting: `deadline`, `no_progress`, `connection`, `http_500`,
            `error_event`, `bad_event`, `incomplete` or, with `determinism`, `continued`; of an
            episode also `environment_raised`, `environment_timeout`, `environment_stalled`,
            `environment_died`, `environment_result`, `environment_never_called` or
            `environment_unrecorded`, or that of a `services.workspaces.client.WorkspaceFailed`.
        retryable: False when the request itself was refused.
    """

    def __init__(self, reason: str, detail: str, *, retryable: bool = True) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.retryable = retryable


class RouterUnavailable(RolloutFailed):
    """The router is away or full: ask again until the deadline."""


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A sample group to roll out.

    Attributes:
        session: value of the session header.
        messages: OpenAI chat messages.
        n: trajectories.
        temperature: 0 is greedy.
        max_tokens: longest answer.
        seed: of the sampling.
        limits: deadlines of the rollout.
        task: what the messages are of, for environments.
        min_version: oldest policy version that may answer, None for any.
        version: oldest policy version that is live as it begins.
        priority: at the router, where lower goes first.
        trace: headers of the span that the calls belong to.
        progressed: called at each sign of progress.
        goes_on: whether another orchestrator goes on with the run, if the rollout is cancelled.
    """

    session: str
    messages: list[dict[str, Any]]
    n: int
    temperature: float
    max_tokens: int
    seed: int
    limits: RolloutLimits
    task: Task | None = None
    min_version: int | None = None
    version: int = 0
    priority: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)
    progressed: Callable[[], None] = field(default=lambda: None, repr=False)
    goes_on: Callable[[], bool] = field(default=lambda: False, repr=False)

    @property
    def routing(self) -> dict[str, str]:
        """Headers of every call to the router, besides the session's."""
        headers = {PRIORITY_HEADER: str(self.priority)} if self.priority else {}
        if self.min_version is not None:
            headers[MIN_VERSION_HEADER] = str(self.min_version)
        return {**headers, **self.trace}


def sampling_seed(*parts: object) -> int:
    """A 31-bit seed that depends on every part, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


class RolloutClient:
    """The router's HTTP API, as any client sees it; use it as an async context.

    Raises:
        InvalidInput: the variable that shall hold the API key is not set.
    """

    def __init__(self, config: OrchestratorConfig, *, model: str) -> None:
        self._config = config
        self._model = model
        self._key = key_header(config.router_key)
        self._places = asyncio.Semaphore(config.max_connections)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "RolloutClient":
        """Open the connection pool."""
        self._http = aiohttp.ClientSession(
            # `_places` bounds the rollouts, and an interruption waits for none of them.
            connector=aiohttp.TCPConnector(limit=0),
            # The deadline of a rollout is its own; here only a dead host is given up.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close every connection."""
        if self._http is not None:
            await self._http.close()

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """Roll out `n` choices; `arrived` is called with each as soon as it is finished.

        While the router is away or full and nothing has come, it is asked again.

        Raises:
            RolloutFailed: the group is not whole; the choices that arrived are.
        """
        last = ""
        try:
            # The wait for a connection, while other groups have them all, is no part of them.
            async with self._places, limited(request.limits) as progressed:

                def heard() -> None:
                    progressed()
                    request.progressed()

                def failed(error: RouterUnavailable, _: float) -> None:
                    nonlocal last
                    last = f", last: {error}"
                    if error.reason == _FULL:  # it answers others meanwhile
                        heard()

                await retrying(
                    lambda: self._attempt(request, arrived, heard),
                    on=RouterUnavailable,
                    pauses=self._config.pauses,
                    failed=failed,
                )
        except LimitReached as limit:
            raise RolloutFailed(limit.reason, f"{limit}{last}") from None

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """See `Sampler`."""
        assert self._http is not None, "use the client as an async context"
        url = self._config.router_url
        return not await interrupt_session(
            self._http, url, request.session, min_version=min_version, headers=self._key
        )

    async def _attempt(
        self, request: RolloutRequest, arrived: Arrived, heard: Callable[[], None]
    ) -> None:
        seen: set[int] = set()
        assert self._http is not None, "use the client as an async context"
        url = f"{self._config.router_url}/v1/chat/completions"
        headers = {SESSION_HEADER: request.session, **request.routing, **self._key}
        try:
            async with self._http.post(url, json=self._body(request), headers=headers) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.text(errors="replace"))
                async for event in _events(response.content, heard):
                    index, trajectory = _choice(event)
                    if index in seen or not 0 <= index < request.n:
                        raise RolloutFailed("bad_event", f"choice {index} of {request.n}")
                    seen.add(index)
                    arrived(index, trajectory)
        except aiohttp.ClientError as error:  # away, or what answers there is no HTTP
            # A choice that has arrived is the caller's: the group cannot begin again.
            failure = RolloutFailed if seen else RouterUnavailable
            raise failure("connection", repr(error)) from error
        if len(seen) != request.n:
            raise RolloutFailed("incomplete", f"{len(seen)} of {request.n} choices came")

    def _body(self, request: RolloutRequest) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": request.messages,
            "n": request.n,
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            **WHOLE_DISTRIBUTION,
            "stream": True,
            STREAM_BY: "choice",
            RETURN_TRAJECTORY: True,
        }


def _message(text: str) -> str:
    """The text of an error for people: `message` of OpenAI's shape, else all of it."""
    try:
        return one_line(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return one_line(text)


def _refusal(status: int, text: str) -> RolloutFailed:
    detail = _message(text)
    if status in UNAVAILABLE:
        return RouterUnavailable(f"http_{status}", detail)
    return RolloutFailed(f"http_{status}", detail, retryable=status >= 500)


def _failure(error: Any, detail: str) -> RolloutFailed:
    """An error inside of a stream, which may have begun while the request was still waiting."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code not in UNAVAILABLE:
        return RolloutFailed(f"http_{code}", detail, retryable=False)
    return RolloutFailed("error_event", detail)


async def _events(content: aiohttp.StreamReader, heard: Callable[[], None]) -> AsyncIterator[bytes]:
    """The data of each server-sent event, up to the end marker.

    The router sends nothing, and no comment either, unless the request makes progress or waits
    where the router itself has a deadline.
    """
    stream = EventStream()
    try:
        async for chunk in content.iter_any():
            heard()
            for data in stream.feed(chunk):
                if data == END:
                    return
                yield data
    except EventTooLong as error:
        raise RolloutFailed("bad_event", str(error)) from None


def _choice(event: bytes) -> tuple[int, Trajectory]:
    try:
        body = json.loads(event)
        if "error" in body:
            raise _failure(body["error"], _message(event.decode()))
        choice = body["choices"][0]
        fields = TrajectoryFields.model_validate(choice["trajectory"])
        trajectory = fields.to_trajectory(
            finish_reason=choice["finish_reason"], text=choice["message"]["content"] or ""
        )
        if not trajectory.response_token_ids:
            raise ValueError("a trajectory without tokens")
        return int(choice["index"]), trajectory
    except (ValueError, ValidationError, KeyError, IndexError, TypeError) as error:
        raise RolloutFailed("bad_event", one_line(repr(error))) from error
