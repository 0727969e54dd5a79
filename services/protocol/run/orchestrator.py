"""Requests and answers of the orchestrator over `/v1/runs`."""

from enum import StrEnum
from math import ceil
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from services.protocol.reward.grader import Grader
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.algorithm_preset import fill_in_run
from services.protocol.run.determinism import unrepeatable
from services.protocol.run.evaluation import DEFAULT_SET, Evaluation, EvaluationConfig
from services.protocol.run.sampling import SamplingConfig
from services.protocol.run.schedule import ScheduleConfig
from services.protocol.run.stale_answers import uncorrected
from services.protocol.run.task import (
    ENVIRONMENT,
    GIVEN,
    LIVE,
    OUTSIDE,
    CurriculumConfig,
    GraderName,
    TaskSource,
)
from services.protocol.run.tracker import TrackerConfig
from services.protocol.strict import StrictModel, wrong_field


class CheckpointConfig(StrictModel):
    """A checkpoint is written after every so many train steps and at the end; how many stay
    is the trainer's to say (`checkpoints_kept`).

    Attributes:
        every: train steps from one to the next.
    """

    every: int = Field(default=10, ge=1)


class RunConfig(StrictModel):
    """A run file.

    Attributes:
        name: also the beginning of the run's id.
        task_file: JSON lines or Parquet of tasks; a relative path counts from the run file.
        tasks: several files or data sets in place of `task_file`, each with its weight.
        run_root: folder in which the run directory is made; relative as above.
        model: served model name, as in the deployment.
        seed: of the order of prompts, of sampling, and of the trainer.
        determinism: two runs of this file end with the same bytes (docs/training.md, "Runs that
            repeat"), or it is refused; needs rollout servers with `determinism: true`.
        steps: train steps.
        batch_groups: sample groups per train step.
        group_size: trajectories per sample group; 1 only for an advantage without a baseline
            from the group, or for a teacher alone (`distillation.rewards: 0`).
        rollout_timeout_s: longest that the rollout of one group may take, seconds; None: as long as
            it makes progress.
        rollout_progress_timeout_s: longest that the rollout of a group may be without progress,
            seconds: without a new token or answer, an open or new call of an environment, or a
            place in the router's queue, whose waits have deadlines of their own.
        episode_timeout_s: longest that an agent outside may play an episode of `external` that it
            took, seconds, whatever its progress.
        environment: in place of one answer a trajectory: `file.py:function` of an own
            `async def rollout(client, task)`, where a relative path counts from the run file; or
            `external`, for agents outside that take sessions and finish them; or `live`, for
            agents outside that have tasks of their own: without `task_file` or `tasks`, and
            with `group_size: 1`.
        graders: by name, those of which an agent outside may choose one when it ends an episode,
            in place of the task's own.
        curriculum: prefer tasks by their pass rate; None takes all alike.
        trackers: `tensorboard`, `wandb`, `mlflow`, by name or with options: where the figures
            of `metrics.jsonl` go as well.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")
    task_file: str | None = None
    tasks: list[TaskSource] = Field(default=[])
    run_root: str = "runs"
    model: str
    seed: int = Field(default=0, ge=0)
    determinism: bool = False
    steps: int = Field(ge=1)
    batch_groups: int = Field(ge=1)
    group_size: int = Field(ge=1)
    rollout_timeout_s: float | None = Field(default=None, gt=0)
    rollout_progress_timeout_s: float = Field(default=600.0, gt=0)
    episode_timeout_s: float = Field(default=7200.0, gt=0)
    environment: str | None = Field(default=None, pattern=rf"^{LIVE}$|{ENVIRONMENT}")
    graders: dict[GraderName, Grader] = Field(default={})
    schedule: ScheduleConfig = ScheduleConfig()
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    curriculum: CurriculumConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    trackers: list[TrackerConfig] = Field(default=[])

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        return fill_in_run(data, max_tokens=SamplingConfig().max_tokens)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._has_tasks()
        if self.group_size < self.algorithm.smallest_group:
            fix = (
                f"Advantage {self.algorithm.advantage} compares the answers to a prompt: give at "
                f"least {self.algorithm.smallest_group}, or choose algorithm.advantage: gae or "
                "reinforce_plus_plus."
            )
            raise wrong_field("group_size", self.group_size, fix)
        for field, value, fix in uncorrected(self.schedule, self.algorithm):
            raise wrong_field(field, value, fix)
        if self.algorithm.distillation is not None and self.sampling.temperature != 1:
            fix = "A teacher's logprobs are those at temperature 1: use it with distillation."
            raise wrong_field("sampling.temperature", self.sampling.temperature, fix)
        taught, played = self.algorithm.distillation, self.played_environments
        if taught is not None and taught.context is not None and played:
            fix = (
                f"The prompts of {played[0]} are its own: a context goes with single answers only."
            )
            raise wrong_field("algorithm.distillation.context", taught.context, fix)
        if self.graders and not {OUTSIDE, LIVE} & set(self.environments):
            fix = "Only agents outside name them: `environment: external` or `live`, or none here."
            raise wrong_field("graders", ", ".join(self.graders), fix)
        self._has_given_answers()
        self._can_repeat()
        known = [source.evaluation_set or DEFAULT_SET for source in self.task_sources]
        for name in self.evaluation.sets:
            if name not in known:
                fix = f"No source has this evaluation_set, only {', '.join(dict.fromkeys(known))}."
                raise wrong_field("evaluation.sets", name, fix)
        kinds = [tracker.kind for tracker in self.trackers]
        if len(set(kinds)) < len(kinds):
            raise wrong_field("trackers", kinds, "Name each at most once.")
        return self

    def _can_repeat(self) -> None:
        if self.determinism:
            places = [self.environment_of(source) for source in self.task_sources]
            found = unrepeatable(self.schedule, self.curriculum, self.algorithm, places)
            for field, value, fix in found:
                raise wrong_field(field, value, f"{fix}, or leave determinism out.")

    def _has_given_answers(self) -> None:
        warmup = self.algorithm.cross_entropy.warmup_steps
        given = [source for source in self.tasks if source.given]
        if warmup and not given:
            fix = "No source of tasks has `given: true`: its answers are what is learned from."
            raise wrong_field("algorithm.cross_entropy.warmup_steps", warmup, fix)
        if warmup and self.algorithm.critic.warmup_steps:
            held = self.algorithm.critic.warmup_steps
            fix = (
                "The policy learns nothing in these steps, and cross_entropy.warmup_steps uses up "
                "the given answers in the same ones: leave one of the two out."
            )
            raise wrong_field("algorithm.critic.warmup_steps", held, fix)
        for source in given:
            if not source.weight and not warmup:
                fix = "Never taken: give it a weight, or algorithm.cross_entropy.warmup_steps."
                raise wrong_field("tasks.weight", source.weight, fix)

    def _has_tasks(self) -> None:
        if not self.is_live and (self.task_file is None) == (not self.tasks):
            raise ValueError("give the run either a task_file or tasks")
        if self.is_live and (self.task_file or self.tasks):
            fix = "Live agents have tasks of their own: leave this out, or make it external."
            raise wrong_field("environment", LIVE, f"A run has a task_file or tasks. {fix}")
        if self.is_live and self.group_size > 1:
            fix = "No two live sessions have the same task: 1, and algorithm.advantage: "
            raise wrong_field("group_size", self.group_size, f"{fix}reinforce_plus_plus or gae.")

    @property
    def is_live(self) -> bool:
        """Whether it learns from sessions of live agents, without tasks."""
        return self.environment == LIVE

    @property
    def updates(self) -> int:
        """Optimizer steps of the policy; it has none in the first train steps of a critic."""
        return max(0, self.steps - self.algorithm.critic.warmup_steps) * self.algorithm.updates

    def graded_of(self, trajectories: int) -> int:
        """Least number of a group's trajectories that must have a reward."""
        share = self.algorithm.least_graded * max(self.group_size, trajectories)
        return max(self.algorithm.smallest_group, ceil(share))

    @property
    def task_sources(self) -> list[TaskSource]:
        """The sources of its tasks."""
        if self.is_live:
            return [TaskSource(file=LIVE)]
        return self.tasks or [TaskSource(file=self.task_file)]

    def environment_of(self, source: TaskSource) -> str | None:
        """The environment of a source's tasks: its own, else the run's."""
        return GIVEN if source.given else source.environment or self.environment

    @property
    def environment_files(self) -> list[str]:
        """Those of the environments that are code."""
        ours = (None, OUTSIDE, LIVE, GIVEN)
        return [name for name in self.environments if name not in ours]

    @property
    def played_environments(self) -> list[str]:
        """Those in which a trajectory can hold several calls, and what tools wrote."""
        return [name for name in self.environments if name not in (None, GIVEN)]

    @property
    def environments(self) -> list[str | None]:
        """Every environment that some of the tasks have, None for those that have none."""
        return list(dict.fromkeys(map(self.environment_of, self.task_sources)))


class RunState(StrEnum):
    """Life of a run. In `disk_full` it waits for space on its disk, whatever it did before."""

    STARTING = "starting"
    EVALUATING = "evaluating"
    TRAINING = "training"
    PAUSED = "paused"
    DISK_FULL = "disk_full"
    RECOVERING = "recovering"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class LedgerCounts(BaseModel):
    """The ledger in groups. Always: admitted = the sum of the others.

    Attributes:
        admitted: groups that were begun.
        trained: in a train step that is done.
        filtered: counted, but with nothing to learn: all rewards equal.
        expired: dropped because they would have been too old.
        failed: not rolled out or not graded, for a reason that `failures` counts.
        in_flight: admitted and not closed.
    """

    admitted: int = 0
    trained: int = 0
    filtered: int = 0
    expired: int = 0
    failed: int = 0
    in_flight: int = 0


class Finding(BaseModel):
    """Something that keeps a run from learning.

    Attributes:
        kind: such as `equal_rewards`; a run has at most one finding of a kind.
        text: what happened, in figures.
        advice: what to try.
    """

    kind: str
    text: str
    advice: str


class RunSummary(BaseModel):
    """Contents of `summary.json`.

    Attributes:
        run_id: name of the run and of its directory.
        heldout_pass_rate_before: pass@1 of the first held-out set before the first train step,
            None if it could not be measured.
        heldout_pass_rate_after: the newest one measured after a train step, None if there
            is none.
        heldout_step: train step after which that was; below `train_steps` when the
            evaluation at the end was not taken or failed.
        heldout_problem: why answers are missing from the newest evaluation in which some were,
            or an evaluation was not made; None while there is nothing to say.
        evaluations_before: of each held-out set, before the first train step.
        evaluations_after: of each held-out set, the newest after a train step.
        train_steps: train steps done.
        wall_s: from start to end, seconds.
        tokens_sampled: see `FIGURES`, as the other figures of tokens.
        tokens_evaluated: of held-out evaluations.
        weight_pushes: commits on replicas, all versions and replicas together.
        policy_version: newest version published.
        seed: of the run file.
        ledger: how the groups were closed.
        failures: failed sample groups by reason, such as `http_400` or `deadline`; as many
            as `ledger.failed`.
        failure_example: task and error of the first failed group, empty without one.
        findings: why the run learned nothing or little, the most important first; empty for one
            that learned.
    """

    run_id: str
    heldout_pass_rate_before: float | None
    heldout_pass_rate_after: float | None
    heldout_step: int | None = None
    heldout_problem: str | None = None
    evaluations_before: list[Evaluation] = []
    evaluations_after: list[Evaluation] = []
    train_steps: int
    wall_s: float
    tokens_sampled: int = 0
    tokens_evaluated: int = 0
    weight_pushes: int
    policy_version: int
    seed: int
    ledger: LedgerCounts
    failures: dict[str, int] = {}
    failure_example: str = ""
    findings: list[Finding] = []


class RunStatus(BaseModel):
    """Answer of `GET /v1/runs/{run_id}`; rates and seconds are rounded for people.

    Attributes:
        run_id: name of the run and of its directory.
        state: where in its life the run is.
        run_dir: folder of its ledger, metrics and trajectories, on the orchestrator's node.
        step: train steps done.
        steps: train steps wanted.
        reward: mean reward of the last trained batch.
        heldout_pass_rate: the newest that was measured, pass@1 of the first held-out set.
        heldout_problem: as in `RunSummary`.
        evaluations: the newest of each held-out set.
        policy_version: newest version published, None before the first.
        staleness: largest of the last batch, None before the first.
        tokens_sampled: see `FIGURES`, as the other figures of tokens.
        tokens_evaluated: of held-out evaluations.
        tokens_per_second: over the last step.
        live_replicas: replicas with a lease.
        admission_window: sample groups that may be open now, None while the schedule is not
            `adaptive`.
        idle: shares of the time so far in which the trainer, and the slots of the rollout,
            were idle, by cause; since the orchestrator took the run up.
        length_bias: mean length of the answers consumed over that of those sampled, less 1.
        ledger: how the groups so far were closed.
        failures: as in `RunSummary`, so far.
        failure_example: as in `RunSummary`.
        findings: what keeps the run from learning, by its sample groups so far.
        elapsed_s: seconds spent on the run, before a resumption too.
        seconds_left: until the last train step, at the pace of the newest ones.
        detail: one line: what it waits for, or why it failed.
        summary: None until the run is over.
    """

    run_id: str
    state: RunState
    run_dir: str
    step: int
    steps: int
    reward: float | None
    heldout_pass_rate: float | None
    heldout_problem: str | None = None
    evaluations: list[Evaluation] = []
    policy_version: int | None
    staleness: float | None
    tokens_sampled: int = 0
    tokens_evaluated: int = 0
    tokens_per_second: float
    live_replicas: int
    admission_window: int | None = None
    idle: dict[str, dict[str, float]] = {}
    length_bias: float | None = None
    ledger: LedgerCounts
    failures: dict[str, int] = {}
    failure_example: str = ""
    findings: list[Finding] = []
    elapsed_s: float
    seconds_left: float | None = None
    detail: str
    summary: RunSummary | None = None


class RunRequest(StrictModel):
    """Body of `POST /v1/runs`.

    Attributes:
        config: the run, its paths absolute.
        resume: id of an earlier run to go on with instead of starting a new one, or `last`: the
            newest run of the same name in `run_root`.
        branch: id of an earlier run, or `last`, from whose newest checkpoint a new run begins.
    """

    config: RunConfig
    resume: str | None = None
    branch: str | None = None

    @model_validator(mode="after")
    def _continues_one_run(self) -> Self:
        if self.resume is not None and self.branch is not None:
            raise ValueError("give resume, which goes on with a run, or branch, which starts one")
        return self
