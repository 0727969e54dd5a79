"""The reward service without Serve: jobs in, scores out."""

import asyncio
import hashlib
import time

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward_service import (
    PythonFunctionGrader,
    PythonStdioGrader,
    Score,
    ScoreJob,
    Verdict,
)
from services.reward_service.config import RewardServiceConfig
from services.reward_service.execution import SlotFailed
from services.reward_service.extraction import extract_code
from services.reward_service.grade import Grade, infra_failure
from services.reward_service.grading import SandboxCrashed, grade_answer
from services.reward_service.jailed.canonical import NoCanonicalText
from services.reward_service.sandbox import QueueFull, Sandbox
from services.reward_service.verdict_cache import VerdictCache

_log = Log("reward_service")


class Scoring:
    """Implements `services.protocol.reward_service.RewardService` in one process."""

    def __init__(self, config: RewardServiceConfig) -> None:
        self.sandbox = Sandbox(config)
        self._cache = VerdictCache(config.cache_entries)
        self._failures_in_a_row = 0
        self._deadline_s = config.answer_deadline_s
        self._failures_allowed = config.failures_until_unhealthy

    async def start(self) -> None:
        """Start the sandbox.

        Raises:
            InvalidInput: this machine cannot hold untrusted code as well as required.
        """
        await self.sandbox.start()

    @property
    def healthy(self) -> bool:
        """False after too many answers in a row that no sandbox could be had for."""
        return self._failures_in_a_row < self._failures_allowed

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """Grade jobs, answers in the order of the jobs; never raises for what a job does.

        Takes at most `answer_deadline_s`: a job that is not graded by then is given up.
        """
        return await asyncio.gather(*(self._score(job) for job in jobs))

    def close(self) -> None:
        """End all sandboxes."""
        self.sandbox.close()

    async def _score(self, job: ScoreJob) -> Score:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s):
                grade, shared = await self._grade(job)
        except TimeoutError:
            _log.warning("answer_deadline_passed", job=job.job_id)
            grade, shared = infra_failure(f"not graded in {self._deadline_s:g} s"), False
        except Exception as error:  # noqa: BLE001 - the edge: counted, logged, never a reward
            _log.exception("grading_failed", job=job.job_id)
            grade, shared = infra_failure(f"{type(error).__name__}: {error}"[:200]), False
        seconds = 0.0 if shared else time.monotonic() - started
        RewardMetrics.verdicts.inc(1, {"verdict": str(grade.verdict)})
        if shared:
            RewardMetrics.cache_hits.inc()
        else:
            RewardMetrics.grading.observe(seconds)
        return grade.score(job.job_id, len(job.grader.tests), seconds=seconds, cached=shared)

    async def _grade(self, job: ScoreJob) -> tuple[Grade, bool]:
        template = getattr(job.grader, "template", None)
        code = extract_code(job.completion, template)
        if code is None:
            return Grade(verdict=Verdict.NO_CODE, passed=0, cpu_s=0.0, detail="no code"), False
        key = _key(code, job.grader)
        return await self._cache.grade(key, lambda: self._run(code, job.grader))

    async def _run(self, code: str, grader: PythonFunctionGrader | PythonStdioGrader) -> Grade:
        try:
            async with self.sandbox.slot() as slot:
                grade = await grade_answer(code, grader, slot)
        except SandboxCrashed as crash:
            _log.warning("sandbox_crashed", reason=str(crash))
            detail = f"lost its sandbox twice: {crash}"[:200]
            grade = Grade(verdict=Verdict.CRASHED_SANDBOX, passed=0, cpu_s=0.0, detail=detail)
        except QueueFull as full:
            return infra_failure(str(full))
        except NoCanonicalText as odd:
            return infra_failure(f"an expected value cannot be compared: it is {odd}")
        except SlotFailed as failure:
            _log.warning("slot_failed", reason=str(failure))
            self._failures_in_a_row += 1
            return infra_failure(str(failure)[:200])
        self._failures_in_a_row = 0
        return grade


def _key(code: str, grader: PythonFunctionGrader | PythonStdioGrader) -> str:
    digest = hashlib.sha256(code.encode("utf-8", "surrogatepass"))
    digest.update(b"\0" + grader.model_dump_json().encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
