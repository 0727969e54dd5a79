"""Grades code: finds it in an answer and runs its tests."""

import contextlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from services.observability.metrics import RewardMetrics
from services.protocol.reward.code_graders import (
    CodeGrader,
    PythonAssertsGrader,
    PythonFunctionGrader,
    PythonStdioGrader,
)
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.graders.code_job import CodeJob
from services.reward_service.grading.tools import Tools
from services.reward_service.languages import Language, languages
from services.reward_service.off_loop import off_loop

AnyCode = CodeGrader | PythonFunctionGrader | PythonStdioGrader | PythonAssertsGrader
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)\n?", re.MULTILINE)
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
    code = await _source_of(completion, spec, language)
    if code is None:
        return replace(Score.failed(Verdict.NO_CODE, "no code"), total=len(tests))
    reference = None
    if spec.reference is not None:
        reference = await _source_of(spec.reference, spec, language)
    job = CodeJob(code, reference, spec, tests, language, tools)
    grade, shared = await tools.cache.grade(job.key, job.grade)
    if shared:
        RewardMetrics.cache_hits.inc()
    return replace(grade, cached=shared)


async def _source_of(completion: str, spec: CodeGrader, language: Language) -> str | None:
    """What runs of an answer, None if it has no code."""
    code = await off_loop(
        len(completion), extract_code, completion, spec.template, tags=language.tags
    )
    return f"{spec.prelude}\n{code}" if code is not None and spec.prelude else code


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
    fence, tag, start = "", "", 0
    for match in _FENCE.finditer(answer):
        if not fence:
            if not (match[1][0] == "`" and "`" in match[2]):
                fence, tag, start = match[1], _first_word(match[2]), match.end()
        elif match[1].startswith(fence) and not match[2].strip():
            found.append(Block(tag=tag, text=answer[start : match.start()], closed=True))
            fence = ""
    if fence:
        found.append(Block(tag=tag, text=answer[start:], closed=False))
    return found


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0].lower() if words else ""
