"""The figures of a run on a deployment, and the problems that it would have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace_tools.capacity.model_shape import parameters_of
from millrace_tools.deploy.algorithm_plan import algorithm_figures
from services.disk import free_bytes
from services.orchestrator.checks.run_check import DeploymentFacts, problems, trajectories
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.protocol.trainer import checkpoint_bytes
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The services of a deployment file that a run needs."""

    orchestrator: OrchestratorConfig
    rollout_server: RolloutServerConfig
    router: RouterConfig
    trainer: TrainerConfig

    @classmethod
    def of(cls, configs: Mapping[str, Any], path: str) -> Self:
        """From the arguments of each application.

        Raises:
            InvalidInput: the deployment file at `path` leaves one of them out.
        """
        names = cls.__dataclass_fields__
        for name in names:
            if name not in configs:
                fix = "The file has no such application, so it says nothing about a run."
                raise InvalidInput(f"{path}: applications", name, fix)
        return cls(**{name: configs[name] for name in names})


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run file, its tasks, and the cluster it is meant for, if that is known."""

    run: RunConfig
    tasks: TaskTable
    cluster: Cluster | None

    @property
    def checkpoint_bytes(self) -> int | None:
        """Bytes of a checkpoint; None where the model is not on this machine, or is frozen."""
        trainer = self.cluster.trainer if self.cluster else None
        parameters = parameters_of(trainer.model) if trainer and not trainer.lora else None
        return None if parameters is None else checkpoint_bytes(parameters)

    def figures(self) -> Iterator[tuple[str, str]]:
        """Names and values, for people."""
        run, schedule = self.run, self.run.schedule
        answers = trajectories(run)
        prompts, known = run.steps * run.batch_groups, len(self.tasks.train)
        yield "tasks", f"{known:,} to learn from, {len(self.tasks.heldout):,} held out"
        yield (
            "prompts",
            f"{run.steps:,} steps x {run.batch_groups} = {prompts:,}, {prompts / known:.2f} "
            "times the tasks",
        )
        yield (
            "train step",
            f"{run.batch_groups} groups x {run.group_size} = {answers:,} "
            f"trajectories, at most {answers * run.sampling.max_tokens:,} sampled tokens",
        )
        dynamic = ", dynamic sampling" if schedule.dynamic_sampling else ""
        yield "schedule", f"{schedule.preset}: unfinished {schedule.unfinished}{dynamic}"
        open_now = schedule.groups_in_flight(run.batch_groups)
        yield (
            "in flight",
            f"at most {open_now} groups = {open_now * run.group_size:,} answers at a time",
        )
        worst = schedule.max_staleness
        yield "worst staleness", f"{worst} versions, on_stale: {schedule.on_stale}"
        yield from algorithm_figures(run.algorithm)
        yield "evaluation", "; ".join(self._sets())
        if self.cluster is not None:
            yield from self._on(self.cluster)
        yield "checkpoints", self._checkpoints()
        yield "run directory", f"below {run.run_root}"

    def _sets(self) -> Iterator[str]:
        for name, ids in self.tasks.sets.items():
            plan = self.run.evaluation.of(name)
            asked = min(plan.tasks, len(ids))
            often = f", every {plan.every} steps" if plan.every else ""
            answers = f"{asked} tasks x {plan.samples}" if plan.samples > 1 else f"{asked} tasks"
            yield f"{name}: {answers} at temperature {plan.temperature:g}{often}"

    def _on(self, cluster: Cluster) -> Iterator[tuple[str, str]]:
        rollout, trainer = cluster.rollout_server, cluster.trainer
        ranks, gpus = trainer.world_size, trainer.gpus_per_rank * trainer.world_size
        devices = f"{ranks} ranks on {trainer.device}" + (f" ({gpus:g} GPUs)" if gpus else "")
        updates, cut = self.run.algorithm.updates, self.run.algorithm.minibatches
        rows = ceil(trajectories(self.run) / cut / trainer.row_groups)
        together = max(1, trainer.micro_batch_tokens // rollout.max_model_len)
        passes = f"{updates} optimizer steps, each of at most {ceil(rows / together)}"
        yield "trainer", f"{devices}, {passes} micro-batches a rank"
        serving = rollout.replicas * rollout.gpus
        yield (
            "rollout servers",
            f"{rollout.replicas} on {rollout.device}"
            + (f" ({serving} GPUs)" if serving else "")
            + f", {rollout.replicas * rollout.max_num_seqs:,} answers at a time, prompt and "
            f"answer at most {rollout.max_model_len:,} tokens",
        )

    def _checkpoints(self) -> str:
        often = f"every {self.run.checkpoint.every} steps and at the end"
        if self.checkpoint_bytes is None or self.cluster is None:
            return f"{often}; the model's size is not known here"
        kept = self.cluster.trainer.checkpoints_kept
        return (
            f"{often}, {kept} kept, {self.checkpoint_bytes / _GB:.2f} GB each; "
            f"{free_bytes(self.run.run_root) / _GB:.1f} GB are free"
        )

    def problems(self) -> Iterator[InvalidInput]:
        """Settings that would fail or have no effect, each with a fix."""
        facts = DeploymentFacts()
        if self.cluster is not None:
            rollout, trainer = self.cluster.rollout_server, self.cluster.trainer
            facts = DeploymentFacts(
                environments=self.cluster.orchestrator.environments,
                tracker_addresses=self.cluster.orchestrator.tracker_addresses,
                teachers=tuple(sorted(self.cluster.orchestrator.teachers)),
                score_queue=self.cluster.orchestrator.score_queue,
                models=(rollout.served_model_name, *rollout.served_model_aliases),
                max_model_len=rollout.max_model_len,
                deterministic=rollout.determinism,
                max_choices=self.cluster.router.max_choices,
                row_groups=trainer.row_groups,
                checkpoint_bytes=self.checkpoint_bytes,
                checkpoints_kept=trainer.checkpoints_kept,
            )
        return problems(self.run, self.tasks, facts)


def explain(config: RunConfig, deployment: str | None, console: Console) -> list[InvalidInput]:
    """Print the plan of a run; returns the problems that it would have.

    Raises:
        InvalidInput: the deployment file cannot be used.
    """
    cluster = None
    if deployment is not None:
        # Ray Serve takes seconds to import; only a deployment file needs it.
        from millrace_tools.deploy.deployment import Deployment

        cluster = Cluster.of(Deployment.read(deployment).configs, deployment)
    plan = RunPlan(run=config, tasks=TaskTable(config), cluster=cluster)
    table = Table.grid(padding=(0, 2))
    for name, value in plan.figures():
        table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    console.print(table)
    if cluster is None:
        console.print("--deployment FILE also checks the run against the services of that file.")
    return list(plan.problems())
