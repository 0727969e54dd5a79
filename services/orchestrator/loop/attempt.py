"""An attempt at a sample group: each of its answers is scored as soon as it arrives."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise, zip_longest

from services.ledger.sample_group import LedgerGroup
from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.observability.tracing import Span
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.results import Graded, GroupResult
from services.orchestrator.observers.group_telemetry import GroupTraces
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import (
    RolloutFailed,
    RolloutRequest,
    Sampler,
    sampling_seed,
)
from services.orchestrator.rollout.scoring import BatchBarrier, Scorer, finite, known, weighed
from services.orchestrator.rollout.teacher import Teacher, TeacherFailed
from services.protocol.reward.grader import AnyGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory

_SEVERAL = "needs episodes in which each call goes on from the one before it"
_log = Log("orchestrator")


@dataclass(kw_only=True)
class Answers:
    """The trajectories of an attempt, each sent to be scored as it arrives.

    Attributes:
        name: of the attempt, for jobs and log lines.
        algorithm: weighs named rewards.
        barrier: score none before all are asked for.
        trace: headers of the group's span.
        progressed: called at each score.
        teacher: is asked about each trajectory as it arrives; None without one.
        arrived: choice, trajectory and, once it was sent, its score.
        taught: what the teacher was asked, in the same order; empty without one.
        graders: that grade a choice in place of the task's, by choice.
        tokens: sampled tokens so far.
    """

    task: Task
    run_id: str
    name: str
    scorer: Scorer
    algorithm: AlgorithmConfig
    barrier: bool
    trace: Mapping[str, str]
    progressed: Callable[[], None]
    teacher: Teacher | None = None
    arrived: list[tuple[int, Trajectory, asyncio.Future[Score] | None]] = field(
        default_factory=list
    )
    taught: list[asyncio.Task[tuple[float, ...]]] = field(default_factory=list)
    graders: dict[int, AnyGrader] = field(default_factory=dict)
    tokens: int = 0

    def add(
        self,
        index: int,
        trajectory: Trajectory,
        score: Score | None = None,
        *,
        grader: AnyGrader | None = None,
    ) -> int:
        """Take choice `index`; without a score, and without a barrier, it is sent to be graded, by
        the task's grader or a given one.

        Returns the tokens that were sampled for it.
        """
        future = None
        if grader is not None:
            self.graders[index] = grader
        if score is not None:
            future = known(score)
        elif not self.barrier:
            future = self._submit(index, trajectory)
        self.arrived.append((index, trajectory, future))
        if self.teacher is not None:
            self.taught.append(self.teacher.submit(self.task, trajectory))
        sampled = sum(trajectory.loss_mask)
        self.tokens += sampled
        return sampled

    @property
    def lengths(self) -> list[int]:
        """Sampled tokens of each trajectory."""
        return [sum(trajectory.loss_mask) for _, trajectory, _ in self.arrived]

    @property
    def oldest_version(self) -> int:
        """The smallest policy version in any of them."""
        return min(trajectory.oldest_version for _, trajectory, _ in self.arrived)

    @property
    def continued(self) -> bool:
        """Whether some are not what they would be without a fault."""
        return any(trajectory.was_continued for _, trajectory, _ in self.arrived)

    async def scores(self) -> tuple[list[Graded], list[Score]]:
        """Wait for all scores: those with a reward, in choice order, and those without."""
        graded, ungraded = [], []
        asked = zip_longest(self.arrived, self.taught)
        waiting = [
            (index, trajectory, future or self._submit(index, trajectory), taught)
            for (index, trajectory, future), taught in sorted(asked, key=lambda item: item[0][0])
        ]
        credit = self.algorithm.credit
        pieces = Counter(index for index, *_ in waiting)
        for index, trajectory, future, taught in waiting:
            weights = {} if self.task.given else self.algorithm.rewards
            score = finite(weighed(await future, weights))
            if credit != "episode" and pieces[index] > 1:
                problem, cause = f"credit: {credit} {_SEVERAL}", "several_trajectories"
                score = Score.ungraded(problem, job_id=score.job_id, total=score.total, cause=cause)
            if taught and score.reward is None:
                taught.cancel()
            try:
                logprobs = await taught if taught and score.reward is not None else None
            except TeacherFailed as error:
                score = Score.ungraded(f"teacher: {error}", job_id=score.job_id, total=score.total)
            if score.reward is not None:
                named = tuple(score.rewards.get(name, 0.0) for name in self.algorithm.decoupled)
                graded.append(
                    Graded(
                        trajectory=trajectory,
                        score=score,
                        teacher=logprobs,
                        named=named,
                        returns=_parts(score, trajectory, credit),
                    )
                )
                continue
            ungraded.append(score)
            RunMetrics.ungraded.inc(1, {"run": self.run_id, "reason": score.cause})
            _log.warning(
                "trajectory_not_graded",
                run=self.run_id,
                group=self.name,
                trajectory=index,
                reason=score.cause,
                error=score.detail,
            )
        return graded, ungraded

    def _submit(self, index: int, trajectory: Trajectory) -> asyncio.Future[Score]:
        grader = self.graders.get(index, self.task.grader)
        assert grader is not None, "checked when the tasks were read"
        name = f"{self.run_id}/{self.name}/{index}"
        span = tracing.begin("score", self.trace, trajectory=index)
        job = ScoreJob(
            job_id=name,
            completion=trajectory.text,
            grader=grader,
            trace=span.traceparent,
        )
        scored = self.scorer.submit(job)
        scored.add_done_callback(lambda _: self.progressed())
        if tracing.is_on():
            scored.add_done_callback(lambda future: _scored(span, future))
        return scored


def _parts(score: Score, trajectory: Trajectory, credit: str) -> tuple[tuple[int, float], ...]:
    """See `Graded.returns`."""
    if credit == "episode":
        return ()
    tokens = len(trajectory.response_token_ids)
    turns = score.returns or ((tokens, score.reward or 0.0),)
    if credit == "turn":
        return turns
    sizes = [end - begin for (begin, _), (end, _) in pairwise([(0, 0.0), *turns])]
    values = [[value] * size for (_, value), size in zip(turns, sizes, strict=True)]
    return tuple(enumerate(chain(*values), 1))


def _scored(span: Span, future: asyncio.Future[Score]) -> None:
    if future.cancelled():
        span.fail("cancelled")
    else:
        verdict = future.result().verdict
        span.set(verdict=str(verdict))
        if verdict is Verdict.INFRA_ERROR:
            span.fail(str(verdict))
    span.end()


@dataclass(kw_only=True)
class Attempt:
    """The attempt in progress of a group; a retry takes its place.

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
        """Tokens sampled in the attempt in progress."""
        return self.answers.tokens if self.answers else 0


class Attempts:
    """Makes the attempts of all groups of a run.

    Attributes:
        teacher: whom it asks about answers, to be open meanwhile; None without one.
    """

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
        self.sampler, self._scorer, self._traces = sampler, scorer, traces
        order, config = context.run.algorithm.distillation, context.config
        self.teacher = Teacher(order, config, context.run.model) if order else None
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
        answers = rolling.answers = self._answers(group, task)

        def arrived(
            index: int,
            trajectory: Trajectory,
            score: Score | None = None,
            /,
            *,
            grader: AnyGrader | None = None,
        ) -> None:
            if rolling.answers is not answers:
                return  # an episode that ended as the attempt was given up
            tokens = answers.add(index, trajectory, score, grader=grader)
            arrivals.append((time.time(), trajectory))
            progress.tokens_arrived += tokens
            progress.lengths.sampled(tokens)
            RunMetrics.tokens.inc(tokens, self._context.tags)
            versions = trajectory.oldest_version, trajectory.newest_version
            self._book.sampled(group.group_id, *versions)

        self._barrier.enter()
        try:
            with tracing.span("rollout", self._traces.of(group.group_id)) as rollout:
                rolling.request = self._request(group, task, rollout.headers)
                await self.sampler.sample(rolling.request, arrived)
                if self._run.determinism and answers.continued:
                    raise RolloutFailed("continued", "a replica went on with another one's answer")
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

    def _answers(self, group: LedgerGroup, task: Task) -> Answers:
        return Answers(
            task=task,
            run_id=self._context.run_id,
            name=f"{group.group_id}/{group.attempt}",
            scorer=self._scorer,
            algorithm=self._run.algorithm,
            barrier=self._run.schedule.batch_barrier,
            trace=self._traces.of(group.group_id),
            progressed=self._progressed,
            teacher=self.teacher,
        )

    def _request(self, group: LedgerGroup, task: Task, trace: Mapping[str, str]) -> RolloutRequest:
        prompt = group.prompt
        return RolloutRequest(
            session=f"{self._context.run_id}-{group.group_id}-{group.attempt}",
            messages=task.chat,
            n=1 if task.given else self._run.group_size,
            temperature=self._run.sampling.temperature,
            max_tokens=self._run.sampling.max_tokens,
            # With `determinism` a group that is sampled again gets the same answers.
            seed=sampling_seed(
                self._run.seed, prompt.position, 0 if self._run.determinism else group.attempt
            ),
            limits=RolloutLimits.of(self._run),
            task=task,
            version=self._context.fleet.live_version or 0,
            trace=trace,
            progressed=self._progressed,
            goes_on=self._context.goes_on,
        )

    def _progressed(self) -> None:
        self._context.progress.moved_at = time.monotonic()
