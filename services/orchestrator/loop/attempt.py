"""One try at a sample group: its answers are sampled and, each as it arrives, scored."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from services.ledger.sample_group import LedgerGroup
from services.observability import tracing
from services.observability.metrics import RunMetrics
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.results import GroupResult
from services.orchestrator.loop.answers import Answers
from services.orchestrator.observers.group_traces import GroupTraces
from services.orchestrator.rollout.rollout import RolloutRequest, Sampler, sampling_seed
from services.orchestrator.rollout.scoring import BatchBarrier, Scorer
from services.protocol.reward.reward_service import Score
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory


@dataclass(kw_only=True)
class Attempt:
    """What is in progress of a group; each try takes the place of the one before.

    Attributes:
        request: of the attempt in progress, None while nothing is being sampled.
        task: makes all attempts at the group.
        answers: of the attempt in progress.
    """

    request: RolloutRequest | None = None
    task: asyncio.Task[None] | None = None
    answers: Answers | None = None

    @property
    def tokens(self) -> int:
        """Sampled in the attempt in progress."""
        return self.answers.tokens if self.answers else 0


class Attempts:
    """Makes them, for all groups of a run."""

    def __init__(
        self,
        context: RunContext,
        tasks: Mapping[str, Task],
        book: GroupBook,
        *,
        sampler: Sampler,
        scorer: Scorer,
        traces: GroupTraces,
    ) -> None:
        self._context, self._run, self._tasks, self._book = context, context.run, tasks, book
        self._sampler, self._scorer, self._traces = sampler, scorer, traces
        self._barrier = BatchBarrier(
            batch_groups=context.run.batch_groups, enabled=context.run.schedule.batch_barrier
        )

    async def make(self, group: LedgerGroup, rolling: Attempt) -> GroupResult:
        """Sample and score a group once.

        Raises:
            RolloutFailed: not all answers came.
        """
        progress, task = self._context.progress, self._tasks[group.prompt.task_id]
        started, started_at = time.monotonic(), time.time()
        arrivals: list[tuple[float, Trajectory]] = []
        answers = rolling.answers = Answers(
            task,
            run_id=self._context.run_id,
            name=f"{group.group_id}/{group.attempt}",
            scorer=self._scorer,
            barrier=self._run.schedule.batch_barrier,
            trace=self._traces.of(group.group_id),
        )

        def arrived(index: int, trajectory: Trajectory, score: Score | None = None, /) -> None:
            tokens = answers.add(index, trajectory, score)
            arrivals.append((time.time(), trajectory))
            progress.tokens += tokens
            progress.lengths.sampled(tokens)
            RunMetrics.tokens.inc(tokens, self._context.tags)
            versions = trajectory.oldest_version, trajectory.newest_version
            self._book.sampled(group.group_id, *versions)

        self._barrier.enter()
        try:
            with tracing.span("rollout", self._traces.of(group.group_id)) as rollout:
                rolling.request = self._request(group, task, rollout.headers)
                await self._sampler.sample(rolling.request, arrived)
                rollout.set(tokens=answers.tokens)
        finally:
            rolling.request = None
            self._barrier.leave()
            self._book.sampling_ended(group.group_id, started_at, arrivals)
        rolled_out = time.monotonic()
        self._book.rolled_out(group.group_id)
        self._context.changes.notify()
        await self._barrier.passed()
        graded, ungraded = await answers.scores()
        self._book.scored(group.group_id, [*(one.score for one in graded), *ungraded])
        return GroupResult(
            group=group,
            task=task,
            graded=tuple(graded),
            ungraded=tuple(ungraded),
            rollout_s=rolled_out - started,
            score_s=time.monotonic() - rolled_out,
        )

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """See `Sampler.interrupt`."""
        return await self._sampler.interrupt(request, min_version)

    def _request(self, group: LedgerGroup, task: Task, trace: Mapping[str, str]) -> RolloutRequest:
        prompt = group.prompt
        return RolloutRequest(
            session=f"{self._context.run_id}-{group.group_id}-{group.attempt}",
            messages=task.chat,
            n=self._run.group_size,
            temperature=self._run.sampling.temperature,
            max_tokens=self._run.sampling.max_tokens,
            seed=sampling_seed(self._run.seed, prompt.position, group.attempt),
            timeout_s=self._run.rollout_timeout_s,
            task=task,
            trace=trace,
        )
