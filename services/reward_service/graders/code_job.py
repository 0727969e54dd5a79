"""One answer's code, compiled and tested in a sandbox worker."""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.code_tests import CodeTest
from services.protocol.reward.reward_service import CompileRecord, Score, Verdict
from services.reward_service.grading.tools import Tools
from services.reward_service.jailed.codec import NotEncodable
from services.reward_service.judging.budget import Budget
from services.reward_service.judging.fault import TaskFault
from services.reward_service.judging.judge import printable
from services.reward_service.judging.policy import policy_reward
from services.reward_service.judging.trial import Trial
from services.reward_service.languages import Language
from services.reward_service.sandbox.compiler import Compiled
from services.reward_service.sandbox.core_queue import QueueFull
from services.reward_service.sandbox.execution import (
    Program,
    SandboxCrashed,
    SlotFailed,
    ToolMissing,
    idle_limit_s,
)
from services.reward_service.sandbox.sandbox import SandboxWorker, crowd, idle_stretch

_log = Log("reward_service")

_HARNESS = 4
"""Part of every cache key; grows when the same code could get another verdict."""
_TEST_S = 0.02
"""A guess at the processor time of one test, until it is known."""


class CodeJob:
    """One answer's code, graded once for all jobs with the same code."""

    def __init__(
        self,
        code: str,
        reference: str | None,
        spec: CodeGrader,
        tests: list[CodeTest],
        language: Language,
        tools: Tools,
    ) -> None:
        self._code, self._reference = code, reference
        self._spec, self._tests = spec, tests
        self._language, self._tools = language, tools
        self._tests_key = _digest(spec.model_dump_json())
        self.key = _digest(code, self._tests_key, f"{_HARNESS} {tools.sandbox.tier}")
        self._compiled: CompileRecord | None = None

    async def grade(self) -> Score:
        """Run it. What fails on our side, or with any answer, is `infra_error`."""
        try:
            grade = await self._in_a_worker()
        except SandboxCrashed as crash:
            _log.warning("sandbox_crashed", reason=str(crash))
            grade = Score.failed(Verdict.CRASHED_SANDBOX, f"lost its sandbox twice: {crash}")
        except QueueFull as full:
            grade = Score.ungraded(str(full))
        except NotEncodable as odd:
            grade = _at_fault(f"an expected value cannot be compared: it is {odd}")
        except TaskFault as fault:
            grade = _at_fault(str(fault))
        except ToolMissing as missing:
            grade = _at_fault(str(missing))
        except SlotFailed as problem:
            _log.warning("slot_failed", reason=str(problem))
            self._tools.failures_in_a_row += 1
            grade = Score.ungraded(str(problem))
        else:
            self._tools.failures_in_a_row = 0
        return replace(grade, total=len(self._tests))

    async def _in_a_worker(self) -> Score:
        async with self._tools.sandbox.worker(self._tests_key, self._estimate_s()) as worker:
            return await self._run(worker)

    def _estimate_s(self) -> float:
        guess = _TEST_S * len(self._tests)
        return self._tools.estimates.cpu_s(self._tests_key, self._language.name, default=guess)

    async def _run(self, worker: SandboxWorker) -> Score:
        sandbox = self._tools.sandbox
        if sandbox.compiler is not None:
            await self._tools.languages.check(self._language, sandbox.compiler, worker)
        compiled = await self._compile(self._code)
        record = self._compiled = None if compiled is None else compiled.record
        if compiled is not None and compiled.binary is None:
            detail = printable("" if record is None else record.message)
            return replace(Score.failed(Verdict.COMPILE_ERROR, detail), **self._stamp())
        budget = self._budget()
        trial = self._trial(self._code, compiled, budget)
        order = self._tools.estimates.order(self._tests_key, len(self._tests))
        await trial.run(order, worker)
        if trial.unchecked:
            await self._refuse_broken_checker(trial.unchecked[:1], worker)
        grade = self._graded(trial, budget)
        cpu_s = budget.cpu_s
        if record is not None and not record.cached:
            cpu_s += record.cpu_ms / 1000
        self._tools.estimates.learn(
            self._tests_key, self._language.name, cpu_s=cpu_s, failed=grade.first_failure
        )
        self._tools.sandbox.cores.revise(self._tests_key, self._estimate_s())
        self._count(trial, budget)
        return grade

    def _budget(self) -> Budget:
        return Budget(
            run_s=self._tools.config.answer_run_s,
            idle_s=idle_limit_s(self._spec.limits),
            cpu_s=self._spec.cpu_budget_s,
            stretch=idle_stretch,
            crowd=crowd,
        )

    def _trial(self, code: str, compiled: Compiled | None, budget: Budget) -> Trial:
        program = Program(source=code)
        if compiled is not None:
            program = Program(binary=compiled.binary, launch=compiled.launch)
        types = self._language.static_types
        return Trial(program, self._spec, self._tests, budget, static_types=types)

    async def _refuse_broken_checker(self, numbers: list[int], worker: SandboxWorker) -> None:
        """Try a checker that failed on the answer on the reference, where the task has one.

        Raises:
            TaskFault: it fails on that too.
        """
        if (code := self._reference) is None:
            return
        compiled = await self._compile(code)
        if compiled is not None and compiled.binary is None:
            return
        trial = self._trial(code, compiled, self._budget())
        await trial.run(numbers, worker)
        if trial.unchecked:
            said = trial.checked[-1].detail
            raise TaskFault(f"test {numbers[0] + 1}, with the reference answer: {said}")

    def _graded(self, trial: Trial, budget: Budget) -> Score:
        failed = next((t for t in trial.checked if t.verdict is not Verdict.ACCEPTED), None)
        passed = trial.passed
        if failed is None and len(passed) < len(self._tests):  # the budget is used up
            verdict, detail = Verdict.TIME_LIMIT, budget.problem
        elif failed is None:
            verdict, detail = Verdict.ACCEPTED, ""
        else:
            verdict, detail = failed.verdict, f"test {failed.test + 1}: {failed.detail}"[:200]
        return Score(
            verdict=verdict,
            reward=policy_reward(self._spec.policy, self._tests, passed),
            passed=len(passed),
            cpu_s=budget.cpu_s,
            detail=detail,
            first_failure=None if failed is None else failed.test,
            run=len(trial.checked),
            tests=tuple(trial.checked),
            **self._stamp(),
        )

    async def _compile(self, source: str) -> Compiled | None:
        """The program of a source; None for Python, which slots run themselves."""
        if self._language.toolchain is None and self._language.runtime is None:
            return None
        compiler = self._tools.sandbox.compiler
        assert compiler is not None, "the sandbox was started"
        if self._spec.entry_point is not None:
            if self._language.with_calls is None:
                raise TaskFault(f"{self._language.name} is graded by whole programs only")
            source = self._language.with_calls(source, self._spec.entry_point)
        with tracing.span("compile", language=self._language.name) as span:
            compiled = await compiler.compile(source, self._language)
            span.set(cached=compiled.record is not None and compiled.record.cached)
            if compiled.binary is None:
                span.fail("compile_error")
        return compiled

    def _stamp(self) -> dict[str, Any]:
        return {"tier": str(self._tools.sandbox.tier or ""), "compile": self._compiled}

    def _count(self, trial: Trial, budget: Budget) -> None:
        language = self._language.name
        RewardMetrics.cpu_s.inc(budget.cpu_s, {"language": language})
        for verdict, tests in Counter(test.verdict for test in trial.checked).items():
            RewardMetrics.tests.inc(tests, {"verdict": str(verdict), "language": language})


def _at_fault(reason: str) -> Score:
    """No answer to this task can be graded: it says nothing of this one, or of the sandbox."""
    _log.warning("task_fault", reason=reason)
    RewardMetrics.task_faults.inc()
    return Score.ungraded(reason)


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()
