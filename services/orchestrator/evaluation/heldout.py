"""Held-out sets of a run: when they are measured, and the newest results."""

import asyncio
from functools import partial
from typing import Self

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.context import RunContext
from services.orchestrator.evaluation.evaluation import Evaluator
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.run.evaluation import Evaluation, EvaluationConfig
from services.protocol.run.orchestrator import RunState
from services.protocol.run.task import Task
from services.side_by_side import cancel

_log = Log("orchestrator")


class HeldOut:
    """The held-out sets of one run; the async context cancels evaluations at its end.

    Between the first and the last train step they are measured beside training: what fails
    there is counted and costs the run nothing.
    """

    def __init__(
        self, context: RunContext, tasks: TaskTable, *, evaluator: Evaluator, record: RunRecord
    ) -> None:
        self._steps, self._progress = context.run.steps, context.progress
        self._evaluator, self._record = evaluator, record
        self._sets: dict[str, tuple[EvaluationConfig, list[Task]]] = {}
        for name, ids in tasks.sets.items():
            plan = context.run.evaluation.of(name)
            self._sets[name] = plan, [tasks[task_id] for task_id in ids[: plan.tasks]]
        self._running: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        """Enter the context; no evaluation runs yet."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Cancel evaluations that still run."""
        await cancel(*self._running.values())

    def start_due(self) -> None:
        """Start the evaluations that are due after the newest train step, without waiting."""
        step = self._progress.step
        if step >= self._steps:
            return  # the evaluation after training comes next
        for name, (plan, _) in self._sets.items():
            if not plan.every or step % plan.every:
                continue
            if name in self._running:
                self._missed(name, "skipped", f"after step {step}: the last one is still running")
                continue
            task = asyncio.create_task(
                self._measured(name, step, f"after step {step}"), name=f"evaluation-{name}"
            )
            self._running[name] = task
            task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, _: asyncio.Task[None]) -> None:
        del self._running[name]

    async def _measured(self, name: str, step: int, when: str) -> None:
        """Measure one set; `when` is for people."""
        (plan, tasks), progress = self._sets[name], self._progress
        version, recoveries = progress.policy_version, progress.recoveries
        try:
            evaluated = await self._evaluator.evaluate(
                name, tasks, plan=plan, step=step, min_version=version
            )
        except Exception as error:  # noqa: BLE001  the outer edge of an evaluation
            self._missed(name, "broke", repr(error))
            return
        self._record.sampled_by_evaluation(evaluated.result.tokens)
        if progress.recoveries != recoveries:
            self._missed(name, "rolled_back", "the weights that it measured are gone")
        else:
            self._record.answered(evaluated.answers)
            self._take(evaluated.result, when)

    def _missed(self, name: str, reason: str, problem: str) -> None:
        tags = {"run": self._progress.run_id, "reason": reason}
        RunMetrics.evaluation_failures.inc(1, tags)
        _log.warning("evaluation_missed", **tags, set=name, problem=problem)
        self._progress.heldout_problem = f"{name}: {problem}"

    @property
    def measured(self) -> bool:
        """Every set has a pass rate of the newest train step."""
        newest = (self._progress.evaluations.get(name) for name in self._sets)
        step = self._progress.step
        return all(one and one.step == step and one.pass_rate is not None for one in newest)

    async def measure(self, when: str, *, again: bool = True) -> None:
        """Measure the sets now, in place of training.

        Args:
            when: for people.
            again: also those that have a result, as from before the run was resumed.
        """
        progress = self._progress
        names = [name for name in self._sets if again or name not in progress.evaluations]
        if not names:
            return
        if self._running:
            await asyncio.wait(list(self._running.values()))  # each request has its deadline
        state, tasks = progress.state, sum(len(self._sets[name][1]) for name in names)
        progress.enter(RunState.EVALUATING, f"{tasks} held-out tasks {when}")
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._measured(name, progress.step, when))
        progress.enter(state, progress.detail)

    def _take(self, result: Evaluation, when: str) -> None:
        progress = self._progress
        tags = {"run": progress.run_id}
        if result.problem:
            progress.heldout_problem = f"{when}: {result.problem}"
        if result.pass_rate is not None:
            RunMetrics.heldout.set(result.pass_rate, tags | {"set": result.name})
        self._record.evaluated(result)
        _log.info("evaluated", run=progress.run_id, when=when, **result.model_dump())
