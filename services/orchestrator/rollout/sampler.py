"""The sampler of a run: single answers, or episodes of an environment."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, Self

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.environment_process import EnvironmentProcess
from services.orchestrator.rollout.episodes import EpisodePlayer, EpisodeSampler
from services.orchestrator.rollout.given_answers import GivenAnswers
from services.orchestrator.rollout.outside_agents import OutsideAgents
from services.orchestrator.rollout.rollout import Arrived, RolloutClient, RolloutRequest, Sampler
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import GIVEN, LIVE, OUTSIDE


class RunSampler(Sampler, AbstractAsyncContextManager[Any], Protocol):
    """The sampler of one run, open from its start to its end."""


class MixedSampler:
    """Passes each sample group to the sampler of its task's environment."""

    def __init__(self, samplers: Mapping[str | None, RunSampler]) -> None:
        self._samplers = samplers
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open all of them, or none."""
        async with AsyncExitStack() as stack:
            for sampler in self._samplers.values():
                await stack.enter_async_context(sampler)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close all of them."""
        await self._open.aclose()

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """As in `Sampler`."""
        await self._of(request).sample(request, arrived)

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """As in `Sampler`."""
        return await self._of(request).interrupt(request, min_version)

    def _of(self, request: RolloutRequest) -> RunSampler:
        return self._samplers[request.task.environment if request.task else None]


def run_sampler(run: RunConfig, config: OrchestratorConfig, run_id: str) -> RunSampler:
    """The sampler that a run file asks for."""
    samplers = {name: _sampler(name, run, config, run_id) for name in run.environments}
    return next(iter(samplers.values())) if len(samplers) == 1 else MixedSampler(samplers)


def _sampler(
    environment: str | None, run: RunConfig, config: OrchestratorConfig, run_id: str
) -> RunSampler:
    if environment is None:
        return RolloutClient(config, model=run.model)
    if environment == GIVEN:
        return GivenAnswers(config, model=run.model)
    player: EpisodePlayer = (
        OutsideAgents(config, run_id, run.graders, live=run.is_live)
        if environment in (OUTSIDE, LIVE)
        else EnvironmentProcess(environment)
    )
    by_token = run.algorithm.credit == "token"
    return EpisodeSampler(config, player=player, model=run.model, run_id=run_id, by_token=by_token)
