"""Problems of a run file, each with the field to change: the same before a run and at
its start, as far as the services that it meets are known."""

import asyncio
import os
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from errno import ENAMETOOLONG
from pathlib import Path
from typing import TypeVar

from services.disk import free_bytes
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.tasks.task_table import TaskTable
from services.orchestrator.trackers.tracker import missing_packages
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.router import RouterLoad
from services.protocol.run.distillation import POLICY
from services.protocol.run.orchestrator import RunConfig
from services.protocol.trainer import Trainer
from services.protocol.weights.weight_bus import WeightBus

_ANSWER_S = 1.0
_FASTEST = 500.0  # tokens a second of one answer, more than any server gives
_GB = 1e9
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class DeploymentFacts:
    """Facts about the services of a deployment; None where a fact is not known.

    Attributes:
        environments: the orchestrator runs Python code that run files name.
        tracker_addresses: it goes to servers of trackers that run files name.
        teachers: names of models that it may ask as teachers.
        score_queue: answers that may wait to be graded.
        models: names that the rollout servers serve.
        max_model_len: longest prompt and answer together that they take, tokens.
        deterministic: their answers do not depend on what is computed beside them.
        max_choices: answers that the router takes in one request.
        row_groups: groups of the trainer's ranks, among which the rows of a batch are divided.
        checkpoint_bytes: of one checkpoint.
        checkpoints_kept: number of checkpoints besides the one being written.
        longest_row: longest prompt and answer together that the model can be trained with, tokens.
    """

    environments: bool | None = None
    tracker_addresses: bool | None = None
    teachers: tuple[str, ...] | None = None
    score_queue: int | None = None
    models: tuple[str, ...] | None = None
    max_model_len: int | None = None
    deterministic: bool | None = None
    max_choices: int | None = None
    row_groups: int | None = None
    checkpoint_bytes: int | None = None
    checkpoints_kept: int | None = None
    longest_row: int | None = None


async def deployment_facts(
    config: OrchestratorConfig,
    bus: WeightBus,
    trainer: Trainer,
    router: Awaitable[RouterLoad | None],
    *,
    resumed: bool,
) -> DeploymentFacts:
    """Ask the services for their facts; a service that does not answer is left out."""
    table, state, load = await asyncio.gather(
        _answer(bus.watch(-1, _ANSWER_S)), _answer(trainer.state()), router
    )
    members = table.members if table else ()
    return DeploymentFacts(
        environments=config.environments,
        tracker_addresses=config.tracker_addresses,
        teachers=tuple(sorted(config.teachers)),
        score_queue=config.score_queue,
        models=tuple(sorted({name for member in members for name in member.names})) or None,
        max_model_len=min((member.max_model_len for member in members), default=None),
        deterministic=all(member.deterministic for member in members) if members else None,
        max_choices=load.max_choices if load else None,
        row_groups=(state.row_groups or None) if state else None,  # 0: they are starting
        # The checkpoints of a resumed run are on disk already, and replace each other.
        checkpoint_bytes=state.checkpoint_bytes if state and not resumed else None,
        checkpoints_kept=state.checkpoints_kept if state else None,
        longest_row=state.longest_row if state else None,
    )


async def _answer(call: Awaitable[_T]) -> _T | None:
    try:
        return await call
    except NotReady:
        return None  # The run itself waits for it, with a deadline.


def refuse(run: RunConfig, tasks: TaskTable, facts: DeploymentFacts) -> None:
    """Refuse a run that would fail.

    Raises:
        InvalidInput: the first of its `problems`.
    """
    for problem in problems(run, tasks, facts):
        raise problem


def problems(run: RunConfig, tasks: TaskTable, facts: DeploymentFacts) -> Iterator[InvalidInput]:
    """Settings that would fail or do nothing, each with the field to change."""
    yield from _of_algorithm(run)
    yield from _of_tasks(run, tasks)
    yield from _of_rollout(run, facts)
    yield from _of_orchestrator(run, facts)
    yield from _of_trainer(run, facts)
    yield from missing_packages(run.trackers)


def trajectories(run: RunConfig) -> int:
    """Trajectories of one train step."""
    return run.batch_groups * run.group_size


def _of_algorithm(run: RunConfig) -> Iterator[InvalidInput]:
    algorithm, longest = run.algorithm, run.sampling.max_tokens
    if algorithm.warmup_steps and algorithm.warmup_steps >= run.updates:
        fix = f"The run has {run.updates} optimizer steps, so its rate is never reached: fewer."
        yield InvalidInput("algorithm.warmup_steps", algorithm.warmup_steps, fix)
    if run.schedule.dynamic_sampling and (run.group_size == 1 or not algorithm.has_rewards):
        fix = (
            "It replaces sample groups of equal rewards: give group_size: 2 or more, and with a "
            "teacher algorithm.distillation.rewards above 0, or leave it out."
        )
        yield InvalidInput("schedule.dynamic_sampling", True, fix)
    if algorithm.minibatches > trajectories(run):
        fix = f"A train step has {trajectories(run)} trajectories: at most that many."
        yield InvalidInput("algorithm.minibatches", algorithm.minibatches, fix)
    limit = None if run.played_environments else algorithm.overlong_limit
    if limit is not None and limit > longest:
        fix = f"No answer has more than sampling.max_tokens = {longest} tokens: at most that."
        yield InvalidInput("algorithm.overlong_limit", limit, fix)


def _of_tasks(run: RunConfig, tasks: TaskTable) -> Iterator[InvalidInput]:
    if run.batch_groups > len(tasks.train) and not run.is_live:
        fix = (
            f"There are {len(tasks.train)} tasks to learn from, so a batch would hold "
            "some twice: fewer groups, or more tasks."
        )
        yield InvalidInput("batch_groups", run.batch_groups, fix)


def _of_rollout(run: RunConfig, facts: DeploymentFacts) -> Iterator[InvalidInput]:
    longest, total_s = run.sampling.max_tokens, run.rollout_timeout_s
    if total_s is not None and longest / total_s > _FASTEST:
        fix = (
            f"An answer of {longest} tokens would need {longest / total_s:,.0f} tokens a second: "
            "longer, a smaller sampling.max_tokens, or none for no limit in all."
        )
        yield InvalidInput("rollout_timeout_s", total_s, fix)
    if facts.models is not None and run.model not in facts.models:
        fix = f"The rollout servers serve {', '.join(facts.models)}."
        yield InvalidInput("model", run.model, fix)
    if facts.max_model_len is not None and longest >= facts.max_model_len:
        fix = (
            f"Prompt and answer together may have {facts.max_model_len} tokens (the servers' "
            "max_model_len): less."
        )
        yield InvalidInput("sampling.max_tokens", longest, fix)
    if run.determinism and facts.deterministic is False:
        fix = (
            "An answer of these engines depends on what they compute beside it: set `determinism: "
            "true` in the rollout servers' args, or leave it out here."
        )
        yield InvalidInput("determinism", True, fix)
    if facts.max_choices is not None and run.group_size > facts.max_choices:
        fix = f"The router refuses more than its max_choices, {facts.max_choices}."
        yield InvalidInput("group_size", run.group_size, fix)


def _of_orchestrator(run: RunConfig, facts: DeploymentFacts) -> Iterator[InvalidInput]:
    for environment in run.environment_files:
        if facts.environments is False:
            fix = (
                "This deployment runs no code of run files: set `environments: true` in the "
                "orchestrator's args, if you trust every client that may start runs."
            )
            yield InvalidInput("environment", environment, fix)
    for tracker in run.trackers:
        if tracker.address is not None and facts.tracker_addresses is False:
            fix = (
                "This deployment shows its keys to no server that a run file names: leave it out "
                "and set the tracker's environment variables where the orchestrator runs, or set "
                "`tracker_addresses: true` in its args."
            )
            yield InvalidInput(f"trackers.{tracker.kind}", tracker.address, fix)
    taught = run.algorithm.distillation
    known = facts.teachers
    if taught is not None and known is not None and taught.teacher not in (POLICY, *known):
        fix = (
            f"`teachers` in the orchestrator's args has {', '.join(known) or 'none'}: choose one, "
            f"add it there, or use {POLICY}."
        )
        yield InvalidInput("algorithm.distillation.teacher", taught.teacher, fix)
    waiting = run.schedule.groups_in_flight(run.batch_groups) * run.group_size
    if facts.score_queue is not None and waiting > facts.score_queue:
        fix = f"Up to {waiting} answers may wait to be graded: at least that many."
        yield InvalidInput("orchestrator.score_queue", facts.score_queue, fix)


def _of_trainer(run: RunConfig, facts: DeploymentFacts) -> Iterator[InvalidInput]:
    together, longest = facts.max_model_len, facts.longest_row
    if together is not None and longest is not None and together > longest:
        fix = (
            f"The model's rotary frequencies change beyond {longest} tokens, otherwise for the "
            f"engines than for the trainer: set the rollout servers' max_model_len to {longest}."
        )
        yield InvalidInput("max_model_len", together, fix)
    each = trajectories(run) // run.algorithm.minibatches
    if facts.row_groups is not None and 0 < each < facts.row_groups:
        fix = (
            f"An optimizer step of {each} trajectories leaves some of the trainer's "
            f"{facts.row_groups} groups of ranks (world_size / context_parallel) without any: "
            "more sample groups, or fewer minibatches."
        )
        yield InvalidInput("batch_groups", run.batch_groups, fix)
    size, kept = facts.checkpoint_bytes, facts.checkpoints_kept
    if size is None or kept is None:
        return
    needed, free = size * (kept + 1), free_bytes(run.run_root)  # and one being written
    if needed > free:
        fix = (
            f"{kept + 1} checkpoints take {needed / _GB:.1f} GB and {free / _GB:.1f} GB are "
            "free: another folder."
        )
        yield InvalidInput("run_root", run.run_root, fix)


def check_paths(run: RunConfig) -> None:
    """Refuse paths that no file system takes.

    Raises:
        InvalidInput: the first of them.
    """
    paths = [("run_root", run.run_root), ("task_file", run.task_file)]
    paths += [("tasks.file", source.file) for source in run.tasks]
    for field, value in paths:
        if value is not None and not Path(value).is_absolute():
            fix = "Send an absolute path: the service does not know the run file's folder."
            raise InvalidInput(field, value, fix)
        if value is not None and not _can_be_a_path(value):
            raise InvalidInput(field, value, "No file has such a name.")


def _can_be_a_path(text: str) -> bool:
    try:
        os.lstat(text)
    except ValueError:  # it holds a zero, or half of a surrogate pair
        return False
    except OSError as error:
        return error.errno != ENAMETOOLONG
    return True


def check_environments(run: RunConfig) -> None:
    """Refuse an environment whose file does not exist here.

    Raises:
        InvalidInput: the first of them.
    """
    for environment in run.environment_files:
        path = environment.rpartition(":")[0]
        if not os.path.isabs(path) or not os.path.isfile(path):
            fix = "Name a file that is there where the orchestrator runs, by its absolute path."
            raise InvalidInput("environment", environment, fix)
