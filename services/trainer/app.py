"""The trainer's Serve application: one light replica that leads the rank actors."""

from ray import serve

from services.observability import tracing
from services.open_files import raise_open_files
from services.peers import bus_peer
from services.protocol.model_source import model_folder, on_hub
from services.trainer.config import TrainerConfig
from services.trainer.lead.rank_group import RankGroup
from services.trainer.lead.service import TrainerService


@serve.deployment(
    name="trainer",
    num_replicas=1,
    max_ongoing_requests=1000,
    max_constructor_retry_count=3,
    graceful_shutdown_timeout_s=5.0,
    graceful_shutdown_wait_loop_s=0.1,
    health_check_period_s=5.0,
    health_check_timeout_s=30.0,
    logging_config={"enable_access_log": False},  # state() is polled
)
class TrainerDeployment(TrainerService):
    """Serves `services.protocol.trainer.Trainer` over a handle; up when its ranks are."""

    async def __init__(self, config: TrainerConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        raise_open_files()
        tracing.start(config.tracing, service="trainer")
        super().__init__(config, bus_peer(), RankGroup.start)
        await self.open()

    async def __del__(self) -> None:
        """Serve awaits this at shutdown: the ranks go first."""
        await self.close()


def build(config: TrainerConfig) -> serve.Application:
    """The application; the deployment's name is `trainer`.

    Raises:
        InvalidInput: the model's folder is missing or holds no checkpoint.
    """
    if not on_hub(config.model):
        model_folder(config.model)
    options = {"num_cpus": config.num_cpus}
    return TrainerDeployment.options(ray_actor_options=options).bind(config)  # type: ignore[attr-defined]
