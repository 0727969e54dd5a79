"""The trainer's Serve application: one light replica that leads the rank actors."""

from ray import serve

from services.observability import tracing
from services.open_files import raise_open_files
from services.peers import bus_peer
from services.protocol.model_source import model_folder, on_hub
from services.protocol.trainer import (
    CheckpointReport,
    LedgerFrontier,
    RunStart,
    TrainBatch,
    TrainerState,
    TrainReport,
)
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
class TrainerDeployment:
    """Serves `services.protocol.trainer.Trainer` over a handle; up when its ranks are."""

    async def __init__(self, config: TrainerConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        raise_open_files()
        tracing.start(config.tracing, service="trainer")
        self._service = TrainerService(config, bus_peer(), RankGroup.start)
        await self._service.open()

    async def start_run(self, start: RunStart) -> TrainerState:
        """See `Trainer.start_run`."""
        return await self._service.start_run(start)

    async def train(self, batch: TrainBatch) -> TrainReport:
        """See `Trainer.train`."""
        return await self._service.train(batch)

    async def save(
        self, run_id: str, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        """See `Trainer.save`."""
        return await self._service.save(run_id, frontier, wait)

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """See `Trainer.logprobs`."""
        return await self._service.logprobs(sequences)

    async def state(self) -> TrainerState:
        """See `Trainer.state`."""
        return await self._service.state()

    def check_health(self) -> None:
        """Serve restarts the replica when this raises; dead ranks heal without it."""
        self._service.check()

    async def __del__(self) -> None:
        """Serve awaits this at shutdown: the ranks go first."""
        await self._service.close()


def build(config: TrainerConfig) -> serve.Application:
    """The application; the deployment's name is `trainer`.

    Raises:
        InvalidInput: the model's folder is missing or holds no checkpoint.
    """
    if not on_hub(config.model):
        model_folder(config.model)
    options = {"num_cpus": config.num_cpus}
    return TrainerDeployment.options(ray_actor_options=options).bind(config)  # type: ignore[attr-defined]
