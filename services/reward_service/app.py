"""The Serve application of the reward service."""

from ray import serve

from services.protocol.reward_service import Score, ScoreJob
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring


@serve.deployment(
    name="reward_service",
    max_ongoing_requests=100_000,  # the sandbox's own queue bounds the work
    graceful_shutdown_timeout_s=30,
    health_check_period_s=10,
    health_check_timeout_s=30,
)
class RewardDeployment:
    """Implements `services.protocol.reward_service.RewardService` behind a Serve handle."""

    async def __init__(self, config: RewardServiceConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        self._scoring = Scoring(config)
        await self._scoring.start()

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """Grade jobs, answers in the order of the jobs; never raises for what a job does."""
        return await self._scoring.score(jobs)

    async def check_health(self) -> None:
        """Called by Serve.

        Raises:
            RuntimeError: no sandbox can be had; Serve then replaces the replica.
        """
        if not self._scoring.healthy:
            raise RuntimeError("no sandbox can be started any more")

    def __del__(self) -> None:
        """Called by Serve at shutdown: no sandbox outlives its service."""
        self._scoring.close()


def build(config: RewardServiceConfig) -> serve.Application:
    """The application, for `deploy/*.yaml` and `serve.run`."""
    options = {"num_cpus": config.num_cpus}
    deployment = RewardDeployment.options(  # type: ignore[attr-defined]
        num_replicas=config.replicas, ray_actor_options=options
    )
    return deployment.bind(config)
