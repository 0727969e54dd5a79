"""One evaluation of a held-out set, through the same router and reward service."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean
from typing import Any

from services.observability.log import Log
from services.orchestrator.core.context import RunContext
from services.orchestrator.failures import one_line
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import (
    RolloutFailed,
    RolloutRequest,
    Sampler,
    sampling_seed,
)
from services.orchestrator.rollout.scoring import Scorer, finite, known, weighed
from services.protocol.reward.grader import AnyGrader
from services.protocol.reward.reward_service import Score, ScoreJob
from services.protocol.run.evaluation import Evaluation, EvaluationConfig
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory

_PRIORITY = 100
"""Of an evaluation's requests at the router: training goes first when replicas are full."""
_SHOWN = 2000  # characters of a text
_log = Log("orchestrator")


@dataclass(kw_only=True)
class _Asked:
    """A task and the answers to it.

    Attributes:
        scores: by the index of the answer; of an episode with several trajectories the last.
        graded: likewise, once they are there.
        trajectories: likewise.
        versions: policy versions of all tokens.
        problem: why answers are missing, empty if none is.
    """

    task: Task
    scores: dict[int, asyncio.Future[Score]] = field(default_factory=dict)
    graded: dict[int, Score] = field(default_factory=dict)
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """An evaluation, and the first answer to each task, as a line for `heldout_answers.jsonl`."""

    result: Evaluation
    answers: tuple[dict[str, Any], ...]


class Evaluator:
    """Asks the tasks of held-out sets; all sets of a run share its bound on open requests."""

    def __init__(self, context: RunContext, sampler: Sampler, scorer: Scorer) -> None:
        self._run, self._run_id, self._goes_on = context.run, context.run_id, context.goes_on
        self._sampler, self._scorer = sampler, scorer
        self._slots = asyncio.Semaphore(context.config.evaluation_concurrency)

    async def evaluate(
        self,
        name: str,
        tasks: Sequence[Task],
        *,
        plan: EvaluationConfig,
        step: int,
        min_version: int | None,
    ) -> Evaluated:
        """Ask every task of a set; failures are counted, not raised.

        No token is older than `min_version`; newer ones come while training goes on.
        """
        began, run = time.monotonic(), self._run
        requests = [
            RolloutRequest(
                session=f"{self._run_id}-evaluation-{name}-{step}-{place}",
                messages=task.chat,
                n=plan.samples,
                temperature=plan.temperature,
                max_tokens=run.sampling.max_tokens,
                seed=sampling_seed(run.seed, "evaluation", task.task_id),
                limits=RolloutLimits.of(run),
                task=task,
                min_version=min_version,
                priority=_PRIORITY,
                goes_on=self._goes_on,
            )
            for place, task in enumerate(tasks)
        ]
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(self._ask(request)) for request in requests]
        asked = [one.result() for one in asking]
        result = _evaluation(name, asked, plan=plan, step=step, seconds=time.monotonic() - began)
        if result.problem:
            _log.warning("evaluation_failures", run=self._run_id, set=name, first=result.problem)
        answers = [_answer(one, {"set": name, "step": step}) for one in asked if one.scores]
        return Evaluated(result=result, answers=tuple(answers))

    async def _ask(self, request: RolloutRequest) -> _Asked:
        assert request.task is not None
        asked = _Asked(task=request.task)

        def arrived(
            index: int,
            trajectory: Trajectory,
            score: Score | None = None,
            /,
            *,
            grader: AnyGrader | None = None,
        ) -> None:
            asked.tokens += sum(trajectory.loss_mask)
            asked.versions |= {span.version for span in trajectory.spans}
            asked.trajectories[index] = trajectory
            scored = known(score) if score else self._score(request, index, trajectory, grader)
            asked.scores[index] = scored

        async with self._slots:
            try:
                await self._sampler.sample(request, arrived)
            except RolloutFailed as failure:
                asked.problem = str(failure)
        for index, future in asked.scores.items():
            score = asked.graded[index] = finite(weighed(await future, self._run.algorithm.rewards))
            if score.reward is not None:
                asked.rewards.append(score.reward)
            else:
                asked.problem = asked.problem or f"{score.verdict}: {one_line(score.detail)}"
        return asked

    def _score(
        self,
        request: RolloutRequest,
        index: int,
        trajectory: Trajectory,
        grader: AnyGrader | None,
    ) -> asyncio.Future[Score]:
        assert request.task is not None
        grader = grader or request.task.grader
        assert grader is not None, "checked when the tasks were read"
        place = request.session.removeprefix(f"{self._run_id}-")
        name = f"{self._run_id}/{place}/{index}"
        return self._scorer.submit(ScoreJob(job_id=name, completion=trajectory.text, grader=grader))


def _answer(asked: _Asked, place: dict[str, Any]) -> dict[str, Any]:
    """The first answer to a task as people read it; long texts are cut."""
    index = min(asked.scores)
    trajectory, score = asked.trajectories[index], asked.graded[index]
    return place | {
        "task_id": asked.task.task_id,
        **asked.task.labels,
        "prompt": str(asked.task.chat[-1].get("content"))[:_SHOWN],
        "answer": trajectory.text[:_SHOWN],
        "reward": score.reward,
        "verdict": str(score.verdict),
        "detail": score.detail[:_SHOWN],
        "tokens": len(trajectory.response_token_ids),
    }


def _evaluation(
    name: str, asked: Sequence[_Asked], *, plan: EvaluationConfig, step: int, seconds: float
) -> Evaluation:
    counts = [(len(one.rewards), sum(r >= 1.0 for r in one.rewards)) for one in asked]
    graded = [one.rewards for one in asked if one.rewards]
    versions = set[int]().union(*(one.versions for one in asked))
    answers, wanted = sum(len(rewards) for rewards in graded), len(asked) * plan.samples
    problem = ""
    if answers < wanted:
        short = [one for one in asked if len(one.rewards) < plan.samples]
        first = next((one for one in short if one.problem), short[0])
        missing = f"{wanted - answers} of {wanted} answers to held-out tasks got no reward"
        why = first.problem or "an episode ended without an answer"
        problem = f"{missing}: task {first.task.task_id}: {why}"
    return Evaluation(
        name=name,
        step=step,
        tasks=len(asked),
        samples=plan.samples,
        temperature=plan.temperature,
        graded=len(graded),
        answers=answers,
        pass_at=pass_rates(counts, plan.samples),
        reward=fmean(fmean(rewards) for rewards in graded) if graded else None,
        oldest_version=min(versions, default=None),
        newest_version=max(versions, default=None),
        tokens=sum(one.tokens for one in asked),
        seconds=seconds,
        problem=problem,
    )


def pass_at_k(answers: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` answers passes, from `answers` of which `passed` do.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al., "Evaluating Large Language
    Models Trained on Code", 2021, arXiv:2107.03374, equation 1: the share of all choices of k
    out of the n answers that hold one that passes. (1 - (1 - c/n)^k is biased.)

    Raises:
        ValueError: not 0 <= passed <= answers and 1 <= k <= answers.
    """
    if not (0 <= passed <= answers and 1 <= k <= answers):
        raise ValueError(f"pass@{k} of {passed} passed among {answers} answers is not defined")
    return 1.0 - comb(answers - passed, k) / comb(answers, k)


def pass_rates(counts: Sequence[tuple[int, int]], samples: int) -> dict[int, float]:
    """Mean pass@k over tasks, for k = 1, 2, 4, ... and `samples`.

    `counts` has graded and passed answers of each task. A task with fewer than k graded
    answers does not count for that k; a k for which no task counts is left out.
    """
    rates = {}
    for k in sorted({2**power for power in range(samples.bit_length())} | {samples}):
        of_tasks = [pass_at_k(answers, passed, k) for answers, passed in counts if answers >= k]
        if of_tasks:
            rates[k] = fmean(of_tasks)
    return rates
