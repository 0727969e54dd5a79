"""Runs one answer's tests in a sandbox worker, in an order, as far as they matter,
and turns what passed into a reward."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from services.observability import tracing
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.code_tests import CodeTest, CustomChecker, Limits, Policy
from services.protocol.reward.reward_service import CheckedTest, Verdict
from services.reward_service.jailed.answer import NOT_ENCODABLE, VALUE
from services.reward_service.jailed.codec import NotDecodable, NotEncodable, decode, encode
from services.reward_service.judging.assertion import Assertion, parse_assertion
from services.reward_service.judging.judge import (
    Judgement,
    failed,
    judge_calls,
    judge_program,
    output_is_right,
    printable,
    result_is_right,
)
from services.reward_service.judging.split_tests import run_split
from services.reward_service.sandbox.execution import Outcome, Program, SlotFailed
from services.reward_service.sandbox.sandbox import SandboxWorker

_HEAD_BYTES = 256
_MAX_SHOWN = 1 << 13
"""Characters of a result that are decoded only to be shown."""
_CHECKER_LIMITS = Limits(cpu_s=10.0)


class Trial:
    """The tests of one answer. `checked` grows as they end, so it is there if one raises.

    Args:
        program: the answer's.
        grader: what is tested and how.
        tests: those of the grader, or of its test set.
        static_types: of the program's language.
    """

    def __init__(
        self, program: Program, grader: CodeGrader, tests: list[CodeTest], *, static_types: bool
    ) -> None:
        self.checked: list[CheckedTest] = []
        self.cpu_s = 0.0
        self._program, self._grader, self._tests = program, grader, tests
        self._static_types = static_types
        self._failed: set[int] = set()

    @property
    def passed(self) -> set[int]:
        """Numbers of the tests that passed."""
        return {test.test for test in self.checked if test.verdict is Verdict.ACCEPTED}

    async def run(self, order: Sequence[int], worker: SandboxWorker) -> None:
        """Run the tests, in this order, that can still change the reward.

        Raises:
            SandboxCrashed: the answer lost its slot twice.
            SlotFailed: no process could be had, or the user's checker failed.
            NotEncodable: an expected value cannot be compared.
        """
        waiting = list(order)
        while waiting := [number for number in waiting if self._matters(number)]:
            if self._over_budget():
                return
            way = self._way(waiting[0])
            alike = [number for number in waiting if self._way(number) == way]
            others = [number for number in waiting if self._way(number) != way]
            waiting = await way(alike, worker) + others

    def _way(self, number: int) -> Callable[[list[int], SandboxWorker], Awaitable[list[int]]]:
        """The method for a test: it runs one or more tests of its kind and returns the others."""
        test = self._tests[number]
        if test.stdin is not None:
            return self._run_program
        if test.args is not None:
            return self._run_calls
        return self._run_asserted if self._assertion(number) else self._run_split

    def _assertion(self, number: int) -> Assertion | None:
        source, entry_point = self._tests[number].asserts, self._grader.entry_point
        return parse_assertion(source, entry_point) if source and entry_point else None

    def _matters(self, number: int) -> bool:
        return still_matters(self._grader.policy, number, self._tests, self._failed)

    def _over_budget(self) -> bool:
        budget = self._grader.cpu_budget_s
        return budget is not None and self.cpu_s >= budget

    async def _run_program(self, waiting: list[int], worker: SandboxWorker) -> list[int]:
        number, *left = waiting
        test = self._tests[number]
        assert test.stdin is not None, "checked with the grader"
        outcome = await worker.run(self._program.run(test.stdin, self._grader.limits))
        self.cpu_s += outcome.cpu_s
        failure = judge_program(outcome, self._grader.limits)
        shown = head(outcome.stdout)
        if failure is None and not await self._output_passes(test, outcome.stdout, worker):
            printed = outcome.stdout[:200].decode(errors="replace")
            failure = failed(Verdict.WRONG_ANSWER, f"printed {printed!r}")
        self._record(number, outcome, shown, failure)
        return left

    async def _run_calls(self, waiting: list[int], worker: SandboxWorker) -> list[int]:
        """Make the calls in one process; returns the tests whose call was not made."""
        texts = [encode(self._tests[number].args or []) for number in waiting]

        async def passes(number: int, line: str) -> bool:
            return await self._result_passes(self._tests[number], line, worker)

        return await self._call(waiting, texts, passes, worker)

    async def _run_asserted(self, waiting: list[int], worker: SandboxWorker) -> list[int]:
        """The same for asserts over one call each."""
        asserted = {number: self._assertion(number) for number in waiting}
        texts = [one.arguments for one in asserted.values() if one is not None]

        async def passes(number: int, line: str) -> bool:
            one = asserted[number]
            return one is not None and line.startswith(VALUE) and one.holds(line[len(VALUE) :])

        return await self._call(waiting, texts, passes, worker, as_plain=True)

    async def _call(
        self,
        waiting: list[int],
        texts: list[str],
        passes: Callable[[int, str], Awaitable[bool]],
        worker: SandboxWorker,
        *,
        as_plain: bool = False,
    ) -> list[int]:
        grader = self._grader
        assert grader.entry_point is not None
        execution = self._program.calls(grader.entry_point, texts, grader.limits, as_plain=as_plain)
        outcome = await worker.run(execution)
        self.cpu_s += outcome.cpu_s
        judged = judge_calls(len(waiting), outcome, grader.limits)
        for number, line in zip(waiting, judged.lines, strict=False):
            failure = None
            if not await passes(number, line):
                failure = failed(Verdict.WRONG_ANSWER, f"wrong result {_shown(line)}")
            self._record(number, outcome, printable(_shown(line)), failure)
        left = waiting[len(judged.lines) :]
        if judged.failure is None or not any(self._matters(number) for number in left):
            return []
        return self._record_end(left, outcome, judged.failure)

    async def _run_split(self, waiting: list[int], worker: SandboxWorker) -> list[int]:
        """Run asserts as code, in a jail beside the answer's."""
        sources = [self._tests[number].asserts or "" for number in waiting]
        stop = self._grader.policy == "all"
        outcome, failures = await run_split(self._program, self._grader, sources, worker, stop=stop)
        self.cpu_s += outcome.cpu_s
        *before, last = failures
        for number, failure in zip(waiting, before, strict=False):
            self._record(number, outcome, "", failure)
        left = waiting[len(before) :]
        if last is None:
            self._record(left[0], outcome, "", None)
            return left[1:]
        return self._record_end(left, outcome, last)

    def _record_end(self, left: list[int], outcome: Outcome, failure: Judgement) -> list[int]:
        """A failure of the first that is left; of all if no test could go otherwise."""
        self._record(left[0], outcome, "", failure)
        if failure.verdict is Verdict.COMPILE_ERROR:
            for number in left[1:]:
                self._record(number, outcome, "", failure)
            return []
        return left[1:]

    async def _output_passes(self, test: CodeTest, output: bytes, worker: SandboxWorker) -> bool:
        checker = self._grader.output_checker
        for expected in (test.expected, *test.also):
            if isinstance(checker, CustomChecker):
                text = output.decode("utf-8", errors="surrogateescape")
                if await self._ask_checker([test.stdin, expected, text], worker):
                    return True
            elif output_is_right(checker, expected, output):
                return True
        return False

    async def _result_passes(self, test: CodeTest, line: str, worker: SandboxWorker) -> bool:
        if not line.startswith(VALUE):
            return False
        checker, text = self._grader.output_checker, line[len(VALUE) :]
        for expected in (test.expected, *test.also):
            if isinstance(checker, CustomChecker):
                try:
                    value = decode(text)
                except NotDecodable:
                    return False
                if await self._ask_checker([test.args, expected, value], worker):
                    return True
            elif result_is_right(checker, expected, text, static_types=self._static_types):
                return True
        return False

    async def _ask_checker(self, arguments: list[object], worker: SandboxWorker) -> bool:
        """Run the user's `check`, in a jail that the answer never entered."""
        source = getattr(self._grader.output_checker, "source", "")
        try:
            text = encode(arguments)
        except NotEncodable:
            return False
        execution = Program(source=source).calls("check", [text], _CHECKER_LIMITS)
        outcome = await worker.run_trusted(execution)
        judged = judge_calls(1, outcome, _CHECKER_LIMITS)
        if judged.failure is not None or judged.lines[0] not in (f"{VALUE}True", f"{VALUE}False"):
            said = judged.failure.detail if judged.failure else "it returned no bool"
            raise SlotFailed(f"the checker failed: {said}")
        return judged.lines[0] == f"{VALUE}True"

    def _record(
        self, number: int, outcome: Outcome, output: str, failure: Judgement | None
    ) -> None:
        if failure is not None:
            self._failed.add(number)
        _trace(number, outcome, failure)
        self.checked.append(
            CheckedTest(
                test=number,
                verdict=Verdict.ACCEPTED if failure is None else failure.verdict,
                cpu_ms=1000 * outcome.cpu_s,
                wall_ms=1000 * outcome.wall_s,
                peak_kb=outcome.peak_kb,
                output=output,
                detail="" if failure is None else failure.detail,
            )
        )


def _trace(number: int, outcome: Outcome, failure: Judgement | None) -> None:
    """The span of a test, whose process has just ended; those of one process share its time."""
    if not tracing.is_on():
        return
    ended = time.time()
    span = tracing.begin("test", at_s=ended - outcome.wall_s, test=number)
    span.set(cpu_ms=1000 * outcome.cpu_s)
    if failure is not None:
        span.fail(str(failure.verdict))
    span.end(ended)


def head(output: bytes) -> str:
    """The beginning of an output, escaped so that a terminal acts on nothing in it."""
    text = output[:_HEAD_BYTES].decode(errors="backslashreplace")
    return text.encode("unicode_escape").decode("ascii")


def _shown(line: str) -> str:
    """A result as Python writes it."""
    text = line[len(VALUE) :]
    if line.startswith(NOT_ENCODABLE):
        return f"({text})"
    if len(text) > _MAX_SHOWN:
        return f"(too long to show: {len(text):,} characters)"
    try:
        return repr(decode(text))
    except ValueError:  # no text of the codec, or an integer of thousands of digits
        return "(cannot be shown)"


def policy_reward(policy: Policy, tests: list[CodeTest], passed: Collection[int]) -> float:
    """The reward, from 0 to 1, for the tests that passed; one that was not run has failed."""
    if policy == "all":
        return float(len(passed) == len(tests))
    if policy == "fraction":
        return len(passed) / len(tests)
    whole = sum(test.weight for test in tests)
    if policy == "grouped":
        won = {number for number in passed if _group_passed(number, tests, passed)}
    else:
        won = set(passed)
    return sum(tests[number].weight for number in won) / whole if whole else 0.0


def still_matters(
    policy: Policy, number: int, tests: list[CodeTest], failed: Collection[int]
) -> bool:
    """Whether running a test can still change the reward.

    Leaving out one that cannot is no gift: it counts as failed.
    """
    if policy == "all":
        return not failed
    if policy == "grouped":
        group = tests[number].group
        return group is None or all(tests[other].group != group for other in failed)
    return True


def _group_passed(number: int, tests: list[CodeTest], passed: Collection[int]) -> bool:
    group = tests[number].group
    if group is None:
        return True
    return all(other in passed for other, test in enumerate(tests) if test.group == group)
