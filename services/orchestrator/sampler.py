"""How a run's sample groups are rolled out: one answer each, or episodes of an environment."""

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.episodes import EpisodeSampler
from services.orchestrator.rollout import RolloutClient
from services.protocol.orchestrator import RunConfig


def run_sampler(
    run: RunConfig, config: OrchestratorConfig, run_id: str
) -> RolloutClient | EpisodeSampler:
    """What the run file asks for."""
    if run.environment is None:
        return RolloutClient(config, model=run.model)
    return EpisodeSampler(config, environment=run.environment, model=run.model, run_id=run_id)
