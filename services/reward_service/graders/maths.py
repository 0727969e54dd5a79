"""Grades mathematical answers: exact, then numeric, then symbolic."""

import re

from services.protocol.reward.grader import MathsGrader
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.graders.code import without_thinking
from services.reward_service.graders.numbers import (
    are_side_by_side,
    brackets,
    is_not_expanded,
    is_reduced,
    last_boxed,
    number,
    plain,
)
from services.reward_service.grading.helper_process import CallFailed
from services.reward_service.grading.tools import Tools
from services.reward_service.off_loop import off_loop

_SYMBOLIC = "services.reward_service.graders.symbolic:same"
_MAX_CHARACTERS = 2048
_MAX_LAST_LINE = 1 << 14
_DRESSING = " \t*_`"
"""Spaces, and the signs of Markdown around an answer."""
_ANSWER_IS = re.compile(r"answer is[ :]*", re.IGNORECASE)


async def grade_maths(completion: str, grader: MathsGrader, tools: Tools) -> Score:
    """Compare the answer with what is expected, the cheapest way that decides."""
    answer = await off_loop(len(completion), _answer_in, completion, grader.strict)
    if answer is None:
        return Score.failed(Verdict.NO_CODE, "there is no final answer")
    expected = [grader.expected] if isinstance(grader.expected, str) else grader.expected
    if grader.strict:
        expected = [one for one in expected if brackets(one) in ("", brackets(answer))]
    decided = decide(answer, expected, strict=grader.strict)
    if decided is None and len(answer) <= _MAX_CHARACTERS:
        return await _symbolic(answer, expected, grader, tools)
    return Score.right_or_wrong(bool(decided), f"answered {answer!r}")


def _answer_in(completion: str, strict: bool) -> str | None:
    return final_answer(without_thinking(completion), strict=strict)


def final_answer(text: str, *, strict: bool) -> str | None:
    r"""The last `\boxed{...}` that is not empty; if there is none and it need not be, the last
    line, or what follows the last "answer is" in it."""
    boxed = last_boxed(text)
    if boxed is not None or strict:
        return boxed
    lines = text.rstrip()[-_MAX_LAST_LINE:].splitlines()
    if not lines:
        return None
    said = _ANSWER_IS.split(lines[-1])[-1]
    # A full stop stands before the signs or after them: `**42.**`, `**42**.`. `.5` begins with one.
    return said.rstrip(f"{_DRESSING}.").lstrip(_DRESSING) or None


def decide(answer: str, expected: list[str], *, strict: bool) -> bool | None:
    """Whether the answer is right, None if only algebra can tell."""
    value = number(answer)
    if strict and not is_reduced(answer):
        return False
    text = plain(answer)
    if any(text == plain(one) for one in expected):
        return True
    if value is None and are_side_by_side(answer):
        return False  # algebra would take two numbers for a mixed one, or for a product
    wanted = [number(text) for text in expected]
    if value is not None and any(
        value == one and not (strict and is_not_expanded(answer, text))
        for one, text in zip(wanted, expected, strict=True)
    ):
        return True
    if all(one is not None for one in wanted) and (strict or value is not None):
        return False  # two numbers that differ; or, strictly, something else than a number
    return None


async def _symbolic(answer: str, expected: list[str], grader: MathsGrader, tools: Tools) -> Score:
    arguments = {"answer": answer, "expected": expected}
    try:
        found = await tools.call_helper(_SYMBOLIC, arguments, timeout_s=grader.timeout_s)
    except CallFailed as problem:
        if "MemoryError" in str(problem):
            return Score.failed(Verdict.MEMORY_LIMIT, "comparing it takes too much memory")
        if "RecursionError" in str(problem):
            return Score.failed(Verdict.WRONG_ANSWER, "nested too deeply")
        raise
    right = found["equal"] and (found["simplified"] or not grader.strict)
    reason = "not simplified" if found["equal"] else f"answered {answer!r}"
    return Score.right_or_wrong(right, reason)
