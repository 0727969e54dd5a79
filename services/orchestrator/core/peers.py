"""The other services, as a run needs them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.orchestrator.checks.run_check import DeploymentFacts
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.router_load import router_load
from services.orchestrator.rollout.sampler import RunSampler, run_sampler
from services.protocol.reward.reward_service import RewardService
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunConfig
from services.protocol.trainer import Trainer
from services.protocol.weights.weight_bus import WeightBus


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The services a run works with.

    Attributes:
        rollouts: makes the run's way to the router.
        load: asks the router how full the replicas are.
    """

    trainer: Trainer
    reward: RewardService
    bus: WeightBus
    rollouts: Callable[[RunConfig, OrchestratorConfig, str], RunSampler] = run_sampler
    load: Callable[[OrchestratorConfig], Awaitable[RouterLoad | None]] = router_load

    async def surroundings(self, config: OrchestratorConfig) -> DeploymentFacts:
        """What they say of themselves; one that is away is not waited for."""
        own = DeploymentFacts(
            environments=config.environments,
            tracker_addresses=config.tracker_addresses,
            score_queue=config.score_queue,
        )
        return await own.asked(self.bus, self.trainer, self.load(config))
