"""The reward service without Serve: jobs in, scores out."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, get_args

from services.observability import tracing
from services.observability.log import Log
from services.observability.loop_lag import observe_loop_lag
from services.observability.metrics import RewardMetrics
from services.protocol.reward.grader import (
    AnyGrader,
    ExactGrader,
    FormatGrader,
    HttpGrader,
    JudgeGrader,
    MathsGrader,
    PythonGrader,
    RegexGrader,
    WeightedGrader,
)
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.protocol.reward.reward_sum import reward_sum
from services.reward_service.config import RewardServiceConfig
from services.reward_service.graders.code import AnyCode, grade_code
from services.reward_service.graders.judge import grade_judge
from services.reward_service.graders.maths import grade_maths
from services.reward_service.graders.text import grade_exact, grade_format, grade_regex
from services.reward_service.graders.users import grade_http, grade_python
from services.reward_service.grading.helper_process import CallFailed, HelperFailed, HelperTimeout
from services.reward_service.grading.tools import Tools
from services.reward_service.sandbox.core_queue import QueueFull
from services.reward_service.sandbox.sandbox import Sandbox, recorded_uses
from services.side_by_side import cancel, gathered

_log = Log("reward_service")
_BEGUN_AT_ONCE = 8
_LAG_PERIOD_S = 0.1

GRADERS: dict[type, Callable[[str, Any, Tools], Coroutine[Any, Any, Score]]] = {
    **dict.fromkeys(get_args(AnyCode), grade_code),
    ExactGrader: grade_exact,
    FormatGrader: grade_format,
    HttpGrader: grade_http,
    JudgeGrader: grade_judge,
    MathsGrader: grade_maths,
    PythonGrader: grade_python,
    RegexGrader: grade_regex,
}
"""The function of each model in `services.protocol.reward.grader` but `WeightedGrader`, which
holds others. What users add themselves is not here: see `graders.user_graders`."""


class Scoring:
    """Implements `services.protocol.reward.reward_service.RewardService` in one process."""

    def __init__(self, config: RewardServiceConfig) -> None:
        self.config = config
        self.tools = Tools(config)
        self._lag: asyncio.Task[None] | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The workers for untrusted code."""
        return self.tools.sandbox

    async def start(self) -> None:
        """Start the sandbox.

        Raises:
            InvalidInput: this machine cannot hold untrusted code as well as required.
        """
        await self.sandbox.start()
        if self.sandbox.compiler is not None:
            await self.tools.languages.look(self.sandbox.compiler)
        lag = observe_loop_lag(RewardMetrics.loop_lag, period_s=_LAG_PERIOD_S)
        self._lag = asyncio.create_task(lag, name="loop_lag")

    @property
    def healthy(self) -> bool:
        """False after too many answers in a row that no sandbox could be had for."""
        return self.tools.failures_in_a_row < self.config.failures_until_unhealthy

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """Grade jobs, answers in the order of the jobs; never raises for what a job does.

        Takes at most `answer_deadline_s`: a job that is not graded by then is cancelled. An answer
        cannot bring that about alone: what it takes of its own is bounded by less.
        """
        tasks: list[asyncio.Task[Score]] = []
        try:
            await self._begin(jobs, tasks)
            return list(await asyncio.gather(*tasks))
        finally:
            await cancel(*tasks)

    async def sandboxes(self) -> int:
        """Sandboxes that run at the same time in this process."""
        return self.config.slots

    async def stream(self, jobs: list[ScoreJob]) -> AsyncGenerator[Score, None]:
        """The same scores, each as soon as it is there. Leaving early stops the work."""
        tasks: list[asyncio.Task[Score]] = []
        try:
            await self._begin(jobs, tasks)
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            await cancel(*tasks)

    def close(self) -> None:
        """End all processes; from any thread, and even after the event loop's end."""
        self.tools.close()
        if self._lag is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._lag.get_loop().call_soon_threadsafe(self._lag.cancel)
            self._lag = None

    async def _begin(self, jobs: list[ScoreJob], tasks: list[asyncio.Task[Score]]) -> None:
        """Begin to grade jobs, a few in each turn of the loop: hundreds would hold it up."""
        for job in jobs:
            tasks.append(asyncio.create_task(self._score(job), name="score"))
            if len(tasks) % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _score(self, job: ScoreJob) -> Score:
        with recorded_uses() as uses, tracing.span("grade", tracing.of(job.trace)) as span:
            score = await self._score_one(job)
            span.set(kind=job.grader.kind, verdict=str(score.verdict), cached=score.cached)
            span.set(passed=score.passed, total=score.total)
            if score.verdict is Verdict.INFRA_ERROR:
                span.fail(str(score.verdict))
        return replace(score, uses=tuple(uses)) if uses else score

    async def _score_one(self, job: ScoreJob) -> Score:
        started, total = time.monotonic(), job.grader.total
        try:
            async with asyncio.timeout(self.config.answer_deadline_s):
                await self.sandbox.cores.wait_for_capacity()
                grade = await self._grade(job.completion, job.grader)
                if grade.reward is not None and not math.isfinite(grade.reward):
                    grade = Score.ungraded(f"its reward is {grade.reward}", total=total)
        except TimeoutError:
            _log.warning("answer_deadline_passed", job=job.job_id)
            grade = Score.ungraded(
                f"not graded in {self.config.answer_deadline_s:g} s", total=total
            )
        except QueueFull as full:
            grade = Score.ungraded(str(full), total=total)
        except Exception as error:  # noqa: BLE001 - the edge: counted, logged, never a reward
            _log.exception("grading_failed", job=job.job_id)
            grade = Score.ungraded(f"{type(error).__name__}: {error}", total=total)
        language = getattr(job.grader, "language", "python") if grade.tier else job.grader.kind
        RewardMetrics.verdicts.inc(1, {"verdict": str(grade.verdict), "language": language})
        seconds = 0.0
        if not grade.cached:
            seconds = time.monotonic() - started
            RewardMetrics.grading.observe(seconds, {"language": language})
        return _of_job(grade, job.job_id, seconds=seconds)

    async def _grade(self, completion: str, grader: AnyGrader) -> Score:
        if isinstance(grader, WeightedGrader):
            parts = (self._grade(completion, part.grader) for part in grader.parts)
            return _weighted(grader, await gathered(parts))
        try:
            return await GRADERS[type(grader)](completion, grader, self.tools)
        except HelperTimeout as late:  # the answer's own doing: hiding in it must not spare a zero
            return _refused(grader, Verdict.TIME_LIMIT, str(late))
        except CallFailed as problem:  # and so is this
            return _refused(grader, Verdict.WRONG_ANSWER, f"it cannot be read: {problem}")
        except HelperFailed as problem:
            return Score.ungraded(str(problem))


def _refused(grader: AnyGrader, verdict: Verdict, reason: str) -> Score:
    """The score of an answer on which one of our own graders failed."""
    cause = "time_limit" if verdict is Verdict.TIME_LIMIT else "raised"
    RewardMetrics.checker_failures.inc(1, {"grader": grader.kind, "reason": cause})
    return Score.failed(verdict, reason)


def _weighted(grader: WeightedGrader, parts: Sequence[Score]) -> Score:
    """The weighted sum of the parts; one that cannot be graded leaves the whole ungraded."""
    for part in parts:
        if part.verdict is Verdict.INFRA_ERROR or part.reward is None:
            return Score.ungraded(part.detail, total=grader.total, cause=part.cause)
    failed = next((part for part in parts if part.verdict is not Verdict.ACCEPTED), None)
    return Score(
        verdict=Verdict.ACCEPTED if failed is None else failed.verdict,
        reward=reward_sum(
            declared.weight * (part.reward or 0.0)
            for declared, part in zip(grader.parts, parts, strict=True)
        ),
        passed=sum(part.passed for part in parts),
        total=sum(part.total for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        detail="" if failed is None else failed.detail,
        tier=next((part.tier for part in parts if part.tier), ""),
        parts=tuple(parts),
        rewards={
            declared.name: part.reward or 0.0
            for declared, part in zip(grader.parts, parts, strict=True)
            if declared.name is not None
        },
    )


def _of_job(score: Score, job_id: str, *, seconds: float) -> Score:
    """The score of one job, its parts included."""
    parts = tuple(_of_job(part, job_id, seconds=seconds) for part in score.parts)
    return replace(score, job_id=job_id, seconds=seconds, parts=parts)
