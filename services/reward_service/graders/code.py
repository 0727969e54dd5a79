"""Grades code: finds it in an answer and runs its tests."""

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.code_graders import (
    CodeGrader,
    PythonAssertsGrader,
    PythonFunctionGrader,
    PythonStdioGrader,
)
from services.protocol.reward.code_tests import CodeTest
from services.protocol.reward.reward_service import CompileRecord, Score, Verdict
from services.reward_service.grading.tools import Tools
from services.reward_service.jailed.codec import NotEncodable
from services.reward_service.judging.judge import printable
from services.reward_service.judging.trial import Trial, policy_reward
from services.reward_service.languages import Language, languages
from services.reward_service.sandbox.compiler import Compiled
from services.reward_service.sandbox.core_queue import QueueFull
from services.reward_service.sandbox.execution import Program, SandboxCrashed, SlotFailed
from services.reward_service.sandbox.sandbox import SandboxWorker

_log = Log("reward_service")

AnyCode = CodeGrader | PythonFunctionGrader | PythonStdioGrader | PythonAssertsGrader
_HARNESS = 2
"""Part of every cache key; grows when the same code could get another verdict."""
_TEST_S = 0.02
"""A guess at the processor time of one test, until it is known."""
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_OPENING = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_OPEN, _CLOSE = "<think>", "</think>"


async def grade_code(completion: str, grader: AnyCode, tools: Tools) -> Score:
    """Find the code in an answer and run its tests; identical code is run once."""
    spec = grader.as_code()
    language = languages().get(spec.language)
    if language is None:
        return Score.ungraded(f"no language is named {spec.language!r}", total=spec.total)
    tests = None
    with contextlib.suppress(ValueError):
        tests = tools.test_sets.of_grader(spec)
    if tests is None:
        return Score.ungraded(
            f"test set {spec.test_set} is not known to this replica, or does not fit the grader: "
            "hand it over again, or give all replicas one test_set_dir"
        )
    code = extract_code(completion, spec.template, tags=language.tags)
    if code is None:
        return replace(Score.failed(Verdict.NO_CODE, "no code"), total=len(tests))
    code = f"{spec.prelude}\n{code}" if spec.prelude else code
    job = _CodeJob(code, spec, tests, language, tools)
    grade, shared = await tools.cache.grade(job.key, job.grade)
    if shared:
        RewardMetrics.cache_hits.inc()
    return replace(grade, cached=shared)


class _CodeJob:
    """One answer's code, graded once for all jobs with the same code."""

    def __init__(
        self,
        code: str,
        spec: CodeGrader,
        tests: list[CodeTest],
        language: Language,
        tools: Tools,
    ) -> None:
        self._code, self._spec, self._tests = code, spec, tests
        self._language, self._tools = language, tools
        self._tests_key = _digest(spec.model_dump_json())
        self.key = _digest(code, self._tests_key, f"{_HARNESS} {tools.sandbox.tier}")
        self._compiled: CompileRecord | None = None

    async def grade(self) -> Score:
        """Run it. What fails on our side is `infra_error`."""
        try:
            grade = await self._in_a_worker()
        except SandboxCrashed as crash:
            _log.warning("sandbox_crashed", reason=str(crash))
            grade = Score.failed(Verdict.CRASHED_SANDBOX, f"lost its sandbox twice: {crash}")
        except QueueFull as full:
            grade = Score.ungraded(str(full))
        except NotEncodable as odd:
            grade = Score.ungraded(f"an expected value cannot be compared: it is {odd}")
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
        compiled = await self._compile()
        if compiled is not None and compiled.binary is None:
            detail = printable(compiled.record.message)
            return replace(Score.failed(Verdict.COMPILE_ERROR, detail), **self._stamp())
        binary = None if compiled is None else compiled.binary
        program = Program(source=self._code, binary=binary)
        trial = Trial(program, self._spec, self._tests, static_types=self._language.static_types)
        order = self._tools.estimates.order(self._tests_key, len(self._tests))
        await trial.run(order, worker)
        grade = self._graded(trial)
        cpu_s = trial.cpu_s
        if compiled is not None and not compiled.record.cached:
            cpu_s += compiled.record.cpu_ms / 1000
        self._tools.estimates.learn(
            self._tests_key, self._language.name, cpu_s=cpu_s, failed=grade.first_failure
        )
        self._tools.sandbox.cores.revise(self._tests_key, self._estimate_s())
        self._count(trial)
        return grade

    def _graded(self, trial: Trial) -> Score:
        failed = next((t for t in trial.checked if t.verdict is not Verdict.ACCEPTED), None)
        passed = trial.passed
        if failed is None and len(passed) < len(self._tests):  # the budget is used up
            verdict, detail = Verdict.TIME_LIMIT, f"used {trial.cpu_s:.2f} s for all tests"
        elif failed is None:
            verdict, detail = Verdict.ACCEPTED, ""
        else:
            verdict, detail = failed.verdict, f"test {failed.test + 1}: {failed.detail}"[:200]
        return Score(
            verdict=verdict,
            reward=policy_reward(self._spec.policy, self._tests, passed),
            passed=len(passed),
            cpu_s=trial.cpu_s,
            detail=detail,
            first_failure=None if failed is None else failed.test,
            run=len(trial.checked),
            tests=tuple(trial.checked),
            **self._stamp(),
        )

    async def _compile(self) -> Compiled | None:
        """The program of a language that is compiled."""
        if self._language.toolchain is None:
            return None
        compiler = self._tools.sandbox.compiler
        assert compiler is not None, "the sandbox was started"
        source = self._code
        if self._spec.entry_point is not None:
            if self._language.with_calls is None:
                raise SlotFailed(f"{self._language.name} is graded by whole programs only")
            source = self._language.with_calls(source, self._spec.entry_point)
        with tracing.span("compile", language=self._language.name) as span:
            compiled = await compiler.compile(source, self._language)
            span.set(cached=compiled.record.cached)
            if not compiled.record.ok:
                span.fail("compile_error")
        self._compiled = compiled.record
        return compiled

    def _stamp(self) -> dict[str, Any]:
        return {"tier": str(self._tools.sandbox.tier or ""), "compile": self._compiled}

    def _count(self, trial: Trial) -> None:
        language = self._language.name
        RewardMetrics.cpu_s.inc(trial.cpu_s, {"language": language})
        for verdict, tests in Counter(test.verdict for test in trial.checked).items():
            RewardMetrics.tests.inc(tests, {"verdict": str(verdict), "language": language})


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()


def extract_code(
    completion: str, template: str | None = None, *, tags: Collection[str] = ("python", "py")
) -> str | None:
    """The source to run, or None when the answer has none; `tags` are those of its language.

    The rules, in this order:

    1. Thinking is left out: everything up to the first `</think>`. An answer that begins with
       `<think>` and never closes it has not begun.
    2. With a template the whole of what is left takes the place of `{completion}`.
    3. Fenced blocks are found line by line: a line of at most three spaces, then three or more
       backticks or tildes, and a tag, opens one; a line with at least as many of the same closes
       it. An unclosed fence reaches to the end. What stands inside a block opens nothing.
    4. Of several blocks the last counts among those tagged with the language; if there are none,
       among those without a tag; if there are none, among all.
    5. Without any fence all that is left is the code.

    Nothing but white space is no code.
    """
    answer = without_thinking(completion)
    if not answer.strip():
        return None
    if template is not None:
        return template.replace("{completion}", answer)
    found = blocks(answer)
    tagged = [block for block in found if block.tag in tags]
    plain = [block for block in found if not block.tag]
    choice = tagged or plain or found
    code = choice[-1].text if choice else answer
    return code if code.strip() else None


def without_thinking(completion: str) -> str:
    """The answer proper: what follows the first `</think>`."""
    before, closed, after = completion.partition(_CLOSE)
    if closed:
        return after
    return "" if before.lstrip().startswith(_OPEN) else completion


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        tag: first word after the fence, in small letters.
        text: the lines inside.
        closed: false if the answer ended first.
    """

    tag: str
    text: str
    closed: bool


def blocks(answer: str) -> list[Block]:
    """All fenced blocks, in order; takes linear time."""
    found: list[Block] = []
    fence, tag, inside = "", "", list[str]()
    for line in _LINES.findall(answer):
        match = _OPENING.match(line)
        if not fence:
            if match and not (match[1][0] == "`" and "`" in match[2]):
                fence, tag, inside = match[1], _first_word(match[2]), []
        elif match and not match[2].strip() and match[1].startswith(fence):
            found.append(Block(tag=tag, text="".join(inside), closed=True))
            fence = ""
        else:
            inside.append(line)
    if fence:
        found.append(Block(tag=tag, text="".join(inside), closed=False))
    return found


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0].lower() if words else ""
