"""Grades mathematical answers: exact, then numeric, then symbolic."""

from services.protocol.reward.grader import MathsGrader
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.graders.code import without_thinking
from services.reward_service.graders.numbers import is_reduced, last_boxed, number, plain
from services.reward_service.grading.helper_process import HelperFailed
from services.reward_service.grading.tools import Tools

_SYMBOLIC = "services.reward_service.graders.symbolic:same"
_MAX_CHARACTERS = 2048


async def grade_maths(completion: str, grader: MathsGrader, tools: Tools) -> Score:
    """Compare the answer with what is expected, the cheapest way that decides."""
    answer = final_answer(without_thinking(completion), strict=grader.strict)
    if answer is None:
        return Score.failed(Verdict.NO_CODE, "there is no final answer")
    expected = [grader.expected] if isinstance(grader.expected, str) else grader.expected
    decided = decide(answer, expected, strict=grader.strict)
    if decided is None and len(answer) <= _MAX_CHARACTERS:
        return await _symbolic(answer, expected, grader, tools)
    return Score.right_or_wrong(bool(decided), f"answered {answer!r}")


def final_answer(text: str, *, strict: bool) -> str | None:
    r"""The last `\boxed{...}` that is not empty; if there is none and it need not be, what
    follows the last "answer is" or "=", or the last line."""
    boxed = last_boxed(text)
    if boxed is not None or strict:
        return boxed
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    last = lines[-1]
    at = last.lower().rfind("answer is")
    if at >= 0:
        last = last[at + len("answer is") :].lstrip(" :")
    return last.strip(" *") or None


def decide(answer: str, expected: list[str], *, strict: bool) -> bool | None:
    """Whether the answer is right, None if only algebra can tell."""
    value = number(answer)
    if strict and not is_reduced(answer):
        return False
    if any(plain(answer) == plain(text) for text in expected):
        return True
    wanted = [number(text) for text in expected]
    if value is not None and any(value == one for one in wanted):
        return True
    if all(one is not None for one in wanted) and (strict or value is not None):
        return False  # two numbers that differ; or, strictly, something else than a number
    return None


async def _symbolic(answer: str, expected: list[str], grader: MathsGrader, tools: Tools) -> Score:
    arguments = {"answer": answer, "expected": expected}
    try:
        found = await tools.call_helper(_SYMBOLIC, arguments, timeout_s=grader.timeout_s)
    except HelperFailed as problem:
        if "MemoryError" in str(problem):
            return Score.failed(Verdict.MEMORY_LIMIT, "comparing it takes too much memory")
        if "RecursionError" in str(problem):
            return Score.failed(Verdict.WRONG_ANSWER, "nested too deeply")
        raise
    right = found["equal"] and (found["simplified"] or not grader.strict)
    reason = "not simplified" if found["equal"] else f"answered {answer!r}"
    return Score.right_or_wrong(right, reason)
