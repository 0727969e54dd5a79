"""How a run's sample groups are rolled out: one answer each, or episodes of an environment."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.episodes import EpisodeSampler
from services.orchestrator.rollout import RolloutClient, Sampler
from services.protocol.orchestrator import RunConfig


class RunSampler(Sampler, AbstractAsyncContextManager[Any], Protocol):
    """What rolls out the groups of one run, open as long as the run lives."""


def run_sampler(run: RunConfig, config: OrchestratorConfig, run_id: str) -> RunSampler:
    """What the run file asks for."""
    if run.environment is None:
        return RolloutClient(config, model=run.model)
    return EpisodeSampler(config, environment=run.environment, model=run.model, run_id=run_id)
