"""Runs one answer's tests in a sandbox worker, in an order, as far as they matter."""

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from services.observability import tracing
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.code_tests import CodeTest, CustomChecker
from services.protocol.reward.reward_service import CheckedTest, Verdict
from services.reward_service.jailed.answer import NOT_ENCODABLE, VALUE
from services.reward_service.jailed.codec import NotDecodable, decode, encode
from services.reward_service.judging.assertion import Assertion, parse_assertion
from services.reward_service.judging.budget import Budget
from services.reward_service.judging.comparison import output_is_right, result_is_right
from services.reward_service.judging.custom_checker import ask_checker
from services.reward_service.judging.fault import CheckerFailed, TaskFault
from services.reward_service.judging.judge import (
    Judgement,
    failed,
    judge_calls,
    judge_program,
    printable,
)
from services.reward_service.judging.policy import still_matters
from services.reward_service.judging.split_tests import run_split
from services.reward_service.off_loop import Turns, off_loop
from services.reward_service.sandbox.execution import Outcome, Program
from services.reward_service.sandbox.sandbox import SandboxWorker

_HEAD_BYTES = 256
_MAX_AT_ONCE = 16
"""Runs of a program in one order to a slot, at most."""
_MAX_MORE_INPUT = 1 << 20
"""Characters that those after the first can read: the event loop copies them."""
_MAX_SHOWN = 1 << 13
"""Characters of a result that are decoded only to be shown."""


class Trial:
    """The tests of one answer. `checked` grows as they end, so it is there if one raises.

    Args:
        program: the answer's.
        grader: what is tested and how.
        tests: those of the grader, or of its test set.
        budget: what the answer may take for all of them.
        static_types: of the program's language.

    Attributes:
        checked: the tests that ended.
        unchecked: numbers of those whose output a user's checker failed on; they failed.
    """

    def __init__(
        self,
        program: Program,
        grader: CodeGrader,
        tests: list[CodeTest],
        budget: Budget,
        *,
        static_types: bool,
    ) -> None:
        self.checked: list[CheckedTest] = []
        self.unchecked: list[int] = []
        self._program, self._grader, self._tests = program, grader, tests
        self._budget, self._static_types = budget, static_types
        self._failed: set[int] = set()
        self._at_once = 1

    @property
    def passed(self) -> set[int]:
        """Numbers of the tests that passed."""
        return {test.test for test in self.checked if test.verdict is Verdict.ACCEPTED}

    async def run(self, order: Sequence[int], worker: SandboxWorker) -> None:
        """Run the tests, in this order, that can still change the reward.

        Raises:
            SandboxCrashed: the answer lost its slot twice.
            SlotFailed: no process could be had.
            TaskFault: the tests or the user's checker fail whatever the answer is.
            NotEncodable: an expected value cannot be compared.
        """
        waiting = list(order)
        while waiting := [number for number in waiting if self._matters(number)]:
            if self._budget.problem:
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

    async def _run_program(self, waiting: list[int], worker: SandboxWorker) -> list[int]:
        """Run the first few, twice as many each time: a wrong answer often fails at once."""
        first, *rest = (self._tests[number].stdin or "" for number in waiting[: self._at_once])
        sizes = accumulate(map(len, rest))
        more = [text for text, size in zip(rest, sizes, strict=True) if size <= _MAX_MORE_INPUT]
        execution = self._program.run(first, self._grader.limits, more)
        outcomes = await worker.run(execution, longest_s=self._budget.left_s)
        self._at_once = min(2 * len(outcomes), _MAX_AT_ONCE)
        for number, outcome in zip(waiting, outcomes, strict=False):
            if self._budget.problem:
                break
            self._budget.charge(outcome)
            if self._matters(number):
                await self._judge_program(number, outcome, worker)
        return waiting[len(outcomes) :]

    async def _judge_program(self, number: int, outcome: Outcome, worker: SandboxWorker) -> None:
        failure = judge_program(outcome, self._grader.limits)
        shown = head(outcome.stdout)
        if failure is None:
            printed = outcome.stdout[:200].decode(errors="replace")
            passes = self._output_passes(self._tests[number], outcome.stdout, worker)
            failure = await self._failure(number, passes, f"printed {printed!r}")
        self._record(number, outcome, shown, failure)

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
            if one is None or not line.startswith(VALUE):
                return False
            return await off_loop(len(line), one.holds, line[len(VALUE) :])

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
        (outcome,) = await worker.run(execution, longest_s=self._budget.left_s)
        self._budget.charge(outcome)
        judged = await off_loop(
            len(outcome.report), judge_calls, len(waiting), outcome, grader.limits
        )
        turns = Turns()
        for number, line in zip(waiting, judged.lines, strict=False):
            await turns.before(len(line))
            shown = _shown(line)
            failure = await self._failure(number, passes(number, line), f"wrong result {shown}")
            self._record(number, outcome, printable(shown), failure)
            if self.unchecked and self._budget.problem:
                return []
        left = waiting[len(judged.lines) :]
        if judged.failure is None or not any(self._matters(number) for number in left):
            return []
        return self._record_end(left, outcome, judged.failure)

    async def _run_split(self, waiting: list[int], worker: SandboxWorker) -> list[int]:
        """Run asserts as code, in a jail beside the answer's."""
        sources = [self._tests[number].asserts or "" for number in waiting]
        stop = self._grader.policy == "all"
        longest_s = self._budget.left_s
        outcome, of_tests, failures = await run_split(
            self._program, self._grader, sources, worker, stop=stop, longest_s=longest_s
        )
        self._budget.charge(outcome, of_tests)
        *before, last = failures
        for number, failure in zip(waiting, before, strict=False):
            self._record(number, outcome, "", failure)
        left = waiting[len(before) :]
        if last is not None and last.verdict is Verdict.INFRA_ERROR:
            if not self._failed:
                raise TaskFault(last.detail)
            last = failed(Verdict.WRONG_ANSWER, last.detail)  # it lost its verdict before
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
                given: list[object] = [test.stdin, expected, text]
                if await ask_checker(checker.source, given, worker, self._budget, size=len(output)):
                    return True
            elif await off_loop(len(output), output_is_right, checker, expected, output):
                return True
        return False

    async def _result_passes(self, test: CodeTest, line: str, worker: SandboxWorker) -> bool:
        if not line.startswith(VALUE):
            return False
        checker, text = self._grader.output_checker, line[len(VALUE) :]
        for expected in (test.expected, *test.also):
            if isinstance(checker, CustomChecker):
                try:
                    value = await off_loop(len(text), decode, text)
                except NotDecodable:
                    return False
                given: list[object] = [test.args, expected, value]
                if await ask_checker(checker.source, given, worker, self._budget, size=len(text)):
                    return True
            elif await off_loop(
                len(text), result_is_right, checker, expected, text, static_types=self._static_types
            ):
                return True
        return False

    async def _failure(self, number: int, passes: Awaitable[bool], reason: str) -> Judgement | None:
        """What is wrong with an output, None if it passes; the checker may fail on it, too."""
        try:
            return None if await passes else failed(Verdict.WRONG_ANSWER, reason)
        except CheckerFailed as problem:
            self.unchecked.append(number)
            if problem.at_limit:  # the next output may take as long
                self._budget.close(problem.judgement.detail)
            return problem.judgement

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
