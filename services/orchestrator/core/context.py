"""The context that all parts of a run share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.changes import Changes
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.progress import Progress
from services.orchestrator.fleet import Fleet
from services.orchestrator.rollout.router_calls import router_load
from services.orchestrator.rollout.sampler import RunSampler, run_sampler
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.reward.reward_service import RewardService
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunConfig
from services.protocol.trainer import RunStart, Trainer
from services.protocol.weights.weight_bus import WeightBus


async def _no_nodes() -> dict[str, dict[str, float]]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The services a run works with.

    Attributes:
        rollouts: makes the run's way to the router.
        load: asks the router how full the replicas are.
        nodes: asks the nodes of the cluster how busy they are: shares by node and resource.
    """

    trainer: Trainer
    reward: RewardService
    bus: WeightBus
    rollouts: Callable[[RunConfig, OrchestratorConfig, str], RunSampler] = run_sampler
    load: Callable[[OrchestratorConfig], Awaitable[RouterLoad | None]] = router_load
    nodes: Callable[[], Awaitable[dict[str, dict[str, float]]]] = _no_nodes


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The same for all parts of a run, from its start to its end.

    Attributes:
        run: the run file.
        config: the orchestrator's own settings.
        peers: the other services.
        fleet: the rollout servers, as the weight bus shows them.
        progress: where the run is.
        changes: wakes parts that wait for another one.
        directory: the run's folder.
        goes_on: whether another orchestrator goes on with the run when this one ends it.
    """

    run: RunConfig
    config: OrchestratorConfig
    peers: Peers
    fleet: Fleet
    progress: Progress
    changes: Changes
    directory: RunDirectory
    goes_on: Callable[[], bool] = lambda: False

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.progress.run_id

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the run's metrics and log lines."""
        return {"run": self.run_id}

    @property
    def start(self) -> RunStart:
        """The run as the trainer is asked to start it."""
        return RunStart(
            run_id=self.run_id,
            checkpoint_dir=str(self.directory.checkpoints),
            origin=str(self.directory.origin) if self.directory.origin.is_dir() else "",
            algorithm=self.run.algorithm,
            temperature=self.run.sampling.temperature,
            seed=self.run.seed,
            updates=self.run.updates,
            determinism=self.run.determinism,
        )
