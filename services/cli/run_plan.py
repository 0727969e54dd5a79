"""What a run file would do on a deployment: the arithmetic, and what cannot go well."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from services.cli.model_size import parameters_of
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.orchestrator import RunConfig
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig

_BYTES_A_PARAMETER = 12  # of a checkpoint: the weight and two moments, in float32
_FASTEST = 500.0  # tokens a second of one answer, more than any server gives
_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a deployment file says of the services that a run meets."""

    orchestrator: OrchestratorConfig
    rollout: RolloutServerConfig
    router: RouterConfig
    trainer: TrainerConfig


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run file, its tasks, and the cluster it is meant for, if that is known."""

    run: RunConfig
    tasks: TaskTable
    cluster: Cluster | None

    @property
    def trajectories(self) -> int:
        """Of one train step."""
        return self.run.batch_groups * self.run.group_size

    @property
    def groups_in_flight(self) -> int:
        """Sample groups that may be open at a time."""
        return self.run.schedule.groups_in_flight(self.run.batch_groups)

    @property
    def checkpoint_bytes(self) -> int | None:
        """Of one checkpoint; None where the model is not known here, or is frozen."""
        trainer = self.cluster.trainer if self.cluster else None
        parameters = parameters_of(trainer.model) if trainer and not trainer.lora else None
        return None if parameters is None else parameters * _BYTES_A_PARAMETER

    def figures(self) -> Iterator[tuple[str, str]]:
        """Name and value of what the run amounts to, for people."""
        run, schedule = self.run, self.run.schedule
        prompts, known = run.steps * run.batch_groups, len(self.tasks.train)
        yield "tasks", f"{known:,} to learn from, {len(self.tasks.heldout):,} held out"
        yield (
            "prompts",
            f"{run.steps:,} steps x {run.batch_groups} = {prompts:,}, {prompts / known:.2f} "
            "times the tasks",
        )
        yield (
            "train step",
            f"{run.batch_groups} groups x {run.group_size} = {self.trajectories:,} "
            f"trajectories, at most {self.trajectories * run.sampling.max_tokens:,} sampled tokens",
        )
        yield "schedule", f"{schedule.preset}: unfinished {schedule.unfinished}"
        open_now = self.groups_in_flight
        yield (
            "in flight",
            f"at most {open_now} groups = {open_now * run.group_size:,} answers at a time",
        )
        worst = schedule.max_staleness
        yield "worst staleness", f"{worst} versions, on_stale: {schedule.on_stale}"
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
        rollout, trainer = cluster.rollout, cluster.trainer
        ranks, gpus = trainer.world_size, trainer.gpus_per_rank * trainer.world_size
        devices = f"{ranks} ranks on {trainer.device}" + (f" ({gpus:g} GPUs)" if gpus else "")
        yield "trainer", f"{devices}, {self._passes(cluster)}"
        serving = rollout.replicas * rollout.gpus
        yield (
            "rollout servers",
            f"{rollout.replicas} on {rollout.device}"
            + (f" ({serving} GPUs)" if serving else "")
            + f", {rollout.replicas * rollout.max_num_seqs:,} answers at a time, prompt and "
            f"answer at most {rollout.max_model_len:,} tokens",
        )

    def _passes(self, cluster: Cluster) -> str:
        trainer, updates = cluster.trainer, self.run.algorithm.minibatches
        rows = ceil(self.trajectories / updates / trainer.world_size)
        longest = cluster.rollout.max_model_len
        together = max(1, trainer.micro_batch_tokens // longest)
        passes = ceil(rows / together)
        return f"{updates} optimizer steps, each of at most {passes} micro-batches a rank"

    def _checkpoints(self) -> str:
        often = f"every {self.run.checkpoint.every} steps and at the end"
        if self.checkpoint_bytes is None or self.cluster is None:
            return f"{often}; how large is not known here"
        kept = self.cluster.trainer.checkpoints_kept
        return (
            f"{often}, {kept} kept, {self.checkpoint_bytes / _GB:.2f} GB each; "
            f"{_free(self.run.run_root) / _GB:.1f} GB are free"
        )

    def problems(self) -> Iterator[InvalidInput]:
        """What would fail or do nothing, each with the field to change."""
        yield from self._own_problems()
        if self.cluster is not None:
            yield from self._service_problems(self.cluster)
            yield from self._trainer_problems(self.cluster)

    def _own_problems(self) -> Iterator[InvalidInput]:
        run, algorithm = self.run, self.run.algorithm
        updates = run.steps * algorithm.minibatches
        if algorithm.warmup_steps >= updates:
            fix = f"The run has {updates} optimizer steps, so its rate is never reached: fewer."
            yield InvalidInput("algorithm.warmup_steps", algorithm.warmup_steps, fix)
        if algorithm.minibatches > self.trajectories:
            fix = f"A train step has {self.trajectories} trajectories: at most that many."
            yield InvalidInput("algorithm.minibatches", algorithm.minibatches, fix)
        longest = run.sampling.max_tokens
        if algorithm.overlong_limit is not None and algorithm.overlong_limit > longest:
            fix = f"No answer has more than sampling.max_tokens = {longest} tokens: at most that."
            yield InvalidInput("algorithm.overlong_limit", algorithm.overlong_limit, fix)
        if longest / run.rollout_timeout_s > _FASTEST:
            fix = (
                f"An answer of {longest} tokens would need {longest / run.rollout_timeout_s:,.0f} "
                "tokens a second: longer, or a smaller sampling.max_tokens."
            )
            yield InvalidInput("rollout_timeout_s", run.rollout_timeout_s, fix)
        if run.batch_groups > len(self.tasks.train):
            fix = (
                f"There are {len(self.tasks.train)} tasks to learn from, so a batch would hold "
                "some twice: fewer groups, or more tasks."
            )
            yield InvalidInput("batch_groups", run.batch_groups, fix)
        for name in self.tasks.sets:
            every = run.evaluation.of(name).every
            if every >= run.steps:
                fix = f"The run ends after {run.steps} steps: less, or 0 for before and after only."
                yield InvalidInput(f"evaluation.every ({name})", every, fix)

    def _service_problems(self, cluster: Cluster) -> Iterator[InvalidInput]:
        run, rollout = self.run, cluster.rollout
        if run.model != rollout.served_model_name:
            fix = f"The rollout servers serve {rollout.served_model_name}."
            yield InvalidInput("model", run.model, fix)
        if run.sampling.max_tokens >= rollout.max_model_len:
            fix = f"Prompt and answer together may have {rollout.max_model_len} tokens: less."
            yield InvalidInput("sampling.max_tokens", run.sampling.max_tokens, fix)
        if run.group_size > cluster.router.max_choices:
            fix = f"The router refuses more than its max_choices, {cluster.router.max_choices}."
            yield InvalidInput("group_size", run.group_size, fix)
        for environment in filter(None, run.environments):
            if not cluster.orchestrator.environments:
                fix = "Set `environments: true` in the orchestrator's args: it runs no such code."
                yield InvalidInput("environment", environment, fix)
        waiting = self.groups_in_flight * run.group_size
        if waiting > cluster.orchestrator.score_queue:
            fix = f"Up to {waiting} answers may wait to be graded: at least that many."
            yield InvalidInput("orchestrator.score_queue", cluster.orchestrator.score_queue, fix)

    def _trainer_problems(self, cluster: Cluster) -> Iterator[InvalidInput]:
        run, trainer = self.run, cluster.trainer
        each = self.trajectories // run.algorithm.minibatches
        if each < trainer.world_size:
            fix = (
                f"An optimizer step of {each} trajectories leaves some of the trainer's "
                f"{trainer.world_size} ranks without any: more groups, or fewer minibatches."
            )
            yield InvalidInput("batch_groups", run.batch_groups, fix)
        size, free = self.checkpoint_bytes, _free(run.run_root)
        kept = trainer.checkpoints_kept + 1  # one more while the newest is written
        if size is not None and size * kept > free:
            fix = (
                f"{kept} checkpoints take {size * kept / _GB:.1f} GB and {free / _GB:.1f} GB are "
                "free: another folder."
            )
            yield InvalidInput("run_root", run.run_root, fix)


def _free(folder: str) -> int:
    """Bytes that are free where the folder is or will be."""
    there = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    return shutil.disk_usage(there).free
