"""The OpenAI client that an environment gets: the policy being trained, and nothing else."""

from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai._models import FinalRequestOptions

_RETRIES = 10
_ANSWERS = ("/chat/completions", "/completions")


class _PolicyClient(AsyncOpenAI):
    """Sets the fields that the trainer relies on in every request of the environment."""

    calls: "PolicyCalls"
    seed: int

    async def request(self, cast_to: Any, options: FinalRequestOptions, **more: Any) -> Any:
        """Once for each call: what the client sends again by itself has the same seed."""
        body = options.json_data
        if options.url in _ANSWERS and isinstance(body, dict):
            limits = ("max_completion_tokens", "max_tokens")
            asked = [tokens for name in limits if (tokens := body.get(name))]
            kept = {name: value for name, value in body.items() if name not in limits}
            fewest = min([self.calls.max_tokens, *asked])
            options.json_data = kept | self.calls.fixed | {"max_tokens": fewest, "seed": self.seed}
            self.seed = (self.seed + 1) % 2**31  # the same call again is another sample
        return await super().request(cast_to, options, **more)


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
        seed: of the first answer.
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
    client.calls, client.seed = calls, calls.seed
    return client
