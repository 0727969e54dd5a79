"""The OpenAI client that an environment gets: the policy being trained, and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai._models import FinalRequestOptions

from services.protocol.errors import InvalidInput
from services.protocol.rollout_server import UNMASKED

_RETRIES = 10
_CHAT = ("max_tokens", "max_completion_tokens")
_LIMITS = {
    "/chat/completions": _CHAT,
    "/completions": _CHAT,
    "/responses": ("max_output_tokens",),
}
"""Paths of calls that the policy answers, each with the names of its bound of the answer; the
first one is sent."""

_NOT_SET = ("/messages", "/generate", "/invocations", "/chat/completions/tokens")
"""Paths by which the router answers, too, and whose sampling is not set here."""


class _PolicyClient(AsyncOpenAI):
    """Sets the fields that the trainer relies on in every request of the environment.

    Attributes:
        calls: what it sets.
        seeds: of the next calls, of all copies of a client together.
    """

    calls: "PolicyCalls"
    seeds: Iterator[int]

    async def request(self, cast_to: Any, options: FinalRequestOptions, **more: Any) -> Any:
        """Once for each call: what the client sends again by itself has the same seed.

        Raises:
            InvalidInput: the policy would answer with sampling that the run has not set.
        """
        path = "/" + urlsplit(options.url).path.strip("/").removeprefix("v1/")
        if options.method.lower() == "post":
            if path in _LIMITS:
                options.json_data = self._set(options, _LIMITS[path])
                options.extra_json = None  # it would go over what is set
            elif path.endswith(_NOT_SET):
                raise _not_set(path)
        return await super().request(cast_to, options, **more)

    def _set(self, options: FinalRequestOptions, limits: tuple[str, ...]) -> dict[str, Any]:
        """The body of a call, with the run's settings in place of its own."""
        if not isinstance(options.json_data, dict):
            raise _not_set(options.url)
        given = options.json_data | dict(options.extra_json or {})
        body = {name: value for name, value in given.items() if name not in UNMASKED}
        asked = [tokens for name in limits if (tokens := body.pop(name, None))]
        bound = {limits[0]: min([self.calls.max_tokens, *asked])}
        return body | self.calls.fixed | bound | {"seed": next(self.seeds) % 2**31}

    def copy(self, **changes: Any) -> Self:
        """A client with other options, whose calls have the same settings."""
        copied = super().copy(**changes)
        copied.calls, copied.seeds = self.calls, self.seeds
        return copied

    with_options = copy


def _not_set(url: str) -> InvalidInput:
    fix = (
        "The run cannot set the sampling of this call, and the trainer could not learn from its "
        "answer: use client.chat.completions, client.completions or client.responses."
    )
    return InvalidInput("url", url, fix)


def connections() -> DefaultAsyncHttpxClient:
    """Connections for many clients: making them takes longer than a call does."""
    return DefaultAsyncHttpxClient(trust_env=False)


@dataclass(frozen=True, kw_only=True)
class PolicyCalls:
    """Settings of the calls of one episode.

    Attributes:
        url: of the router.
        session: headers that name the recorded session.
        api_key: that the router asks for.
        fixed: body fields that no call can change, such as temperature and model: the logprobs
            must be those that the trainer computes.
        max_tokens: bound of each answer.
        seed: of the first answer; each later one has the next.
        timeout_s: of each call, seconds; None: the router's deadlines end it.
    """

    url: str
    session: dict[str, str]
    api_key: str
    fixed: dict[str, Any]
    max_tokens: int
    seed: int
    timeout_s: float | None


def policy_client(http: DefaultAsyncHttpxClient, calls: PolicyCalls) -> AsyncOpenAI:
    """A client whose calls have these settings."""
    client = _PolicyClient(
        base_url=f"{calls.url}/v1",
        api_key=calls.api_key,
        default_headers=calls.session,
        timeout=calls.timeout_s,
        max_retries=_RETRIES,
        http_client=http,
    )
    client.calls, client.seeds = calls, count(calls.seed)
    return client
