"""Answers that a task file gives: they are learned from as they are, and nothing is sampled."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from services.http.api_key import key_header
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.failures import one_line
from services.orchestrator.rollout.rollout import (
    UNAVAILABLE,
    Arrived,
    RolloutFailed,
    RolloutRequest,
    RouterUnavailable,
)
from services.protocol.reward.reward_service import Score
from services.protocol.trajectory import PolicySpan, Trajectory
from services.retry import retrying

_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
REPLICA = "given"
"""Stands where a sampled token has its replica."""


class GivenAnswers:
    """A `Sampler` of given answers, which the router's chat template makes tokens of."""

    def __init__(self, config: OrchestratorConfig, *, model: str) -> None:
        self._config, self._model = config, model
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "GivenAnswers":
        """Open the connections."""
        limit = aiohttp.TCPConnector(limit=self._config.max_connections)
        key = key_header(self._config.router_key)
        self._http = aiohttp.ClientSession(connector=limit, headers=key, timeout=_TIMEOUT)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close them."""
        if self._http is not None:
            await self._http.close()

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """`arrived` gets the task's answer as the only trajectory.

        Raises:
            RolloutFailed: the router makes no tokens of it, or the chat template renders the
                prompt otherwise once it is answered.
        """
        assert request.task is not None
        assert request.task.answer is not None, "checked when the tasks were read"
        prompt = await self._tokens(request, [], add_generation_prompt=True)
        answer = {"role": "assistant", "content": request.task.answer}
        whole = await self._tokens(request, [answer], add_generation_prompt=False)
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            problem = "the chat template does not render the prompt before a given answer"
            raise RolloutFailed("given_answer", problem, retryable=False)
        response = tuple(whole[len(prompt) :])
        count = len(response)
        span = PolicySpan(version=request.version, start=0, end=count, replica_id=REPLICA)
        trajectory = Trajectory(
            prompt_token_ids=tuple(prompt),
            response_token_ids=response,
            behaviour_logprobs=(0.0,) * count,
            loss_mask=(1,) * count,
            spans=(span,),
            finish_reason="stop",
            text=request.task.answer,
        )
        arrived(0, trajectory, Score.right_or_wrong(True, ""))

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """See `Sampler`: nothing goes on for long."""
        return 0

    async def _tokens(
        self, request: RolloutRequest, more: list[dict[str, Any]], *, add_generation_prompt: bool
    ) -> list[int]:
        body = {
            "model": self._model,
            "messages": [*request.messages, *more],
            "add_generation_prompt": add_generation_prompt,
        }
        return await retrying(
            lambda: self._asked(body, request.trace),
            on=RouterUnavailable,
            pauses=self._config.pauses,
            timeout_s=request.limits.longest_quiet_s,
        )

    async def _asked(self, body: dict[str, Any], trace: Mapping[str, str]) -> list[int]:
        assert self._http is not None, "use it as an async context"
        url = f"{self._config.router_url}/tokenize"
        try:
            async with self._http.post(url, json=body, headers=trace) as response:
                if response.status == 200:
                    tokens: list[int] = (await response.json())["tokens"]
                    return tokens
                problem = one_line(await response.text(errors="replace"))
                if response.status in UNAVAILABLE:
                    raise RouterUnavailable(f"http_{response.status}", problem)
                raise RolloutFailed(f"http_{response.status}", problem, retryable=False)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise RouterUnavailable("connection", one_line(repr(error))) from error
        except (ValueError, KeyError) as error:
            raise RolloutFailed("connection", one_line(repr(error))) from error
