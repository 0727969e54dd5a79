"""Grades the text of an answer: exact, by a pattern, by its form.

Patterns are the user's and the text is the policy's, so they meet in a process that can be
killed: a pattern may take for ever on a text made for it.
"""

from typing import Any

from services.protocol.reward.grader import ExactGrader, FormatGrader, RegexGrader
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.graders.code import blocks, without_thinking
from services.reward_service.graders.numbers import last_boxed
from services.reward_service.grading.tools import Tools
from services.reward_service.off_loop import off_loop

_TIMEOUT_S, _SHOWN = 2.0, 200
_PATTERNS = "services.reward_service.graders.patterns"


async def grade_exact(completion: str, grader: ExactGrader, tools: Tools) -> Score:
    """Compare the answer, or what the pattern finds in it, with the expected texts."""
    answer: str | None = without_thinking(completion)
    if grader.pattern is not None:
        answer = await _in_helper("last_group", grader.pattern, str(answer), tools)
    if answer is None or not answer.strip():
        return Score.failed(Verdict.NO_CODE, "there is no answer")
    expected = [grader.expected] if isinstance(grader.expected, str) else grader.expected
    texts = [text.strip() for text in (answer, *expected)]
    if grader.ignore_case:
        texts = [text.casefold() for text in texts]
    return Score.right_or_wrong(texts[0] in texts[1:], f"answered {answer.strip()[:_SHOWN]!r}")


async def grade_regex(completion: str, grader: RegexGrader, tools: Tools) -> Score:
    """Look for the pattern."""
    pattern = f"(?s{'i' if grader.ignore_case else ''}:{grader.pattern})"
    answer = without_thinking(completion).strip()
    found = await _in_helper("fits" if grader.whole else "occurs", pattern, answer, tools)
    return Score.right_or_wrong(bool(found), "the pattern does not match")


async def grade_format(completion: str, grader: FormatGrader, _: Tools) -> Score:
    """Check everything that the form asks for."""
    missing = await off_loop(len(completion), format_problem, completion, grader)
    return Score.right_or_wrong(missing is None, missing or "")


def format_problem(completion: str, grader: FormatGrader) -> str | None:
    """The first fault of the form, None if it is right."""
    if grader.max_characters is not None and len(completion) > grader.max_characters:
        return f"longer than {grader.max_characters} characters"
    at = 0
    for tag in grader.tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if completion.count(opening) != 1 or completion.count(closing) != 1:
            return f"{opening}...{closing} must stand there once"
        start, end = completion.index(opening), completion.index(closing)
        if start < at or end < start:
            return f"{opening}...{closing} is not in its place"
        at = end + len(closing)
    if grader.boxed and last_boxed(completion) is None:
        return "there is no boxed answer"
    if grader.code and not any(block.closed and block.text.strip() for block in blocks(completion)):
        return "there is no closed code block"
    return None


async def _in_helper(function: str, pattern: str, text: str, tools: Tools) -> Any:
    arguments = {"pattern": pattern, "text": text}
    return await tools.call_helper(f"{_PATTERNS}:{function}", arguments, timeout_s=_TIMEOUT_S)
