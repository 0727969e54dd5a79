"""Greedy pass rate on held-out tasks, through the same router and reward service."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.observability.log import Log
from services.orchestrator.failures import one_line
from services.orchestrator.rollout import RolloutFailed, RolloutRequest, Sampler
from services.orchestrator.scoring import Scorer
from services.protocol.orchestrator import RunConfig
from services.protocol.reward_service import Score, ScoreJob
from services.protocol.task import Task
from services.protocol.trajectory import Trajectory

_log = Log("orchestrator")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the policy did on held-out tasks.

    Attributes:
        passed: tasks whose greedy answer got reward 1.
        graded: tasks that got a reward at all; the others are infrastructure failures.
        tasks: tasks asked.
        tokens: response tokens generated.
        first_problem: task and problem of the first that got none, empty if all did.
    """

    passed: int
    graded: int
    tasks: int
    tokens: int
    first_problem: str

    @property
    def pass_rate(self) -> float | None:
        """Passed among graded; None when nothing could be graded."""
        return self.passed / self.graded if self.graded else None

    @property
    def problem(self) -> str | None:
        """Why tasks are missing from the pass rate; None when none is."""
        missing = self.tasks - self.graded
        if not missing:
            return None
        return f"{missing} of {self.tasks} held-out tasks got no reward: {self.first_problem}"


async def evaluate(
    tasks: Sequence[Task],
    *,
    run: RunConfig,
    run_id: str,
    client: Sampler,
    scorer: Scorer,
    concurrency: int,
) -> Evaluation:
    """Ask every task once at temperature 0, many at a time; failures are counted, not raised."""
    slots = asyncio.Semaphore(concurrency)
    failures: list[str] = []

    def failed(task: Task, problem: object) -> None:
        failures.append(f"task {task.task_id}: {problem}")

    async def answer(task: Task) -> tuple[int, Score] | None:
        got: list[tuple[Trajectory, Score | None]] = []

        def arrived(_: int, trajectory: Trajectory, score: Score | None = None, /) -> None:
            got.append((trajectory, score))

        request = _request(task, run=run, run_id=run_id)
        try:
            async with slots:
                await client.sample(request, arrived)
        except RolloutFailed as failure:
            failed(task, failure)
            return None
        trajectory, score = got[-1]  # an episode may have several; they share its reward
        if score is None:
            name = f"{run_id}/evaluation/{task.task_id}"
            assert task.grader is not None, "checked when the tasks were read"
            job = ScoreJob(job_id=name, completion=trajectory.text, grader=task.grader)
            score = await scorer.submit(job)
        if score.reward is None:
            failed(task, f"{score.verdict}: {one_line(score.detail)}")
        return sum(sum(one.loss_mask) for one, _ in got), score

    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(answer(task)) for task in tasks]
    done = [result for task in answers if (result := task.result()) is not None]
    if failures:
        _log.warning("evaluation_failures", run=run_id, count=len(failures), first=failures[0])
    rewards = [score.reward for _, score in done if score.reward is not None]
    return Evaluation(
        passed=sum(reward >= 1.0 for reward in rewards),
        graded=len(rewards),
        tasks=len(tasks),
        tokens=sum(tokens for tokens, _ in done),
        first_problem=failures[0] if failures else "",
    )


def _request(task: Task, *, run: RunConfig, run_id: str) -> RolloutRequest:
    return RolloutRequest(
        session=f"{run_id}-evaluation-{task.task_id}",
        messages=task.chat,
        n=1,
        temperature=0.0,
        max_tokens=run.sampling.max_tokens,
        seed=run.seed,
        timeout_s=run.rollout_timeout_s,
        task=task,
    )
