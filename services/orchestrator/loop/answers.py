"""The answers of one attempt at a sample group."""

import asyncio
from collections.abc import Mapping

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.observability.tracing import Span
from services.orchestrator.core.results import Graded
from services.orchestrator.rollout.scoring import Scorer
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory

_log = Log("orchestrator")


class Answers:
    """Trajectories as they arrive, each on its way to a score.

    Args:
        trace: headers of the group's span.

    Attributes:
        tokens: sampled tokens so far.
    """

    def __init__(
        self,
        task: Task,
        *,
        run_id: str,
        name: str,
        scorer: Scorer,
        barrier: bool,
        trace: Mapping[str, str],
    ) -> None:
        self._task = task
        self._trace = trace
        self._run_id = run_id
        self._name = name
        self._scorer = scorer
        self._barrier = barrier
        self._arrived: list[tuple[int, Trajectory, asyncio.Future[Score] | None]] = []
        self.tokens = 0

    def add(self, index: int, trajectory: Trajectory, score: Score | None = None) -> int:
        """Take choice `index`; without a score, and without a barrier, it is sent to be graded.

        Returns the tokens that were sampled for it.
        """
        future = None
        if score is not None:
            future = asyncio.get_running_loop().create_future()
            future.set_result(score)
        elif not self._barrier:
            future = self._submit(index, trajectory)
        self._arrived.append((index, trajectory, future))
        sampled = sum(trajectory.loss_mask)
        self.tokens += sampled
        return sampled

    @property
    def lengths(self) -> list[int]:
        """Sampled tokens of each."""
        return [sum(trajectory.loss_mask) for _, trajectory, _ in self._arrived]

    @property
    def oldest_version(self) -> int:
        """The smallest policy version in any of them."""
        return min(trajectory.oldest_version for _, trajectory, _ in self._arrived)

    async def scores(self) -> tuple[list[Graded], list[Score]]:
        """Wait for all scores: those with a reward, in choice order, and those without."""
        graded, ungraded = [], []
        waiting = [
            (index, trajectory, future or self._submit(index, trajectory))
            for index, trajectory, future in sorted(self._arrived, key=lambda item: item[0])
        ]
        for index, trajectory, future in waiting:
            score = await future
            if score.reward is not None:
                graded.append(Graded(trajectory=trajectory, score=score))
                continue
            ungraded.append(score)
            RunMetrics.ungraded.inc(1, {"run": self._run_id})
            _log.warning(
                "trajectory_not_graded",
                run=self._run_id,
                group=self._name,
                trajectory=index,
                error=score.detail,
            )
        return graded, ungraded

    def _submit(self, index: int, trajectory: Trajectory) -> asyncio.Future[Score]:
        assert self._task.grader is not None, "checked when the tasks were read"
        name = f"{self._run_id}/{self._name}/{index}"
        span = tracing.begin("score", self._trace, trajectory=index)
        job = ScoreJob(
            job_id=name,
            completion=trajectory.text,
            grader=self._task.grader,
            trace=span.traceparent,
        )
        scored = self._scorer.submit(job)
        if tracing.is_on():
            scored.add_done_callback(lambda future: _scored(span, future))
        return scored


def _scored(span: Span, future: asyncio.Future[Score]) -> None:
    if future.cancelled():
        span.fail("cancelled")
    else:
        verdict = future.result().verdict
        span.set(verdict=str(verdict))
        if verdict is Verdict.INFRA_ERROR:
            span.fail(str(verdict))
    span.end()
