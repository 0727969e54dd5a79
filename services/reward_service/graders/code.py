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
_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})([^\n]*)\n?", re.MULTILINE)
_OPEN, _CLOSE = "<think>", "</think>"
_END = r"[ \t\r\f]*+(?:#[^\n]*+)?(?:\n|\Z)"
_FUTURE_IMPORTS = re.compile(
    rf"(?:{_END}(?!\Z))*+"  # lines without code
    rf"(?:[rRuU]?(?>(\"{{3}}|'{{3}}|[\"'])(?:[^\\]|\\.)*?\1){_END})?+"  # the docstring
    rf"(?:(?!\Z){_END}|from[ \t]++__future__[ \t]++import\b(?:[ \t]*+\([^()]*+\)|[\w \t,]++)"
    rf"(?:[ \t]*+;[ \t]*+|{_END}))*+",
    re.DOTALL,
)
"""The beginning of a Python program up to the last place where it may import from the future."""


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
    return await off_loop(len(completion), _source_in, completion, spec, language)


def _source_in(completion: str, spec: CodeGrader, language: Language) -> str | None:
    code = extract_code(completion, spec.template, tags=language.tags)
    if code is None or not spec.prelude:
        return code
    if language.name == "python":
        return with_prelude(code, spec.prelude)
    return f"{spec.prelude}\n{code}"


def with_prelude(code: str, prelude: str) -> str:
    """A Python program with other source before it, but for its imports from `__future__`.

    No other statement may stand before these. Takes linear time.
    """
    beginning = _FUTURE_IMPORTS.match(code)
    if beginning is None or "__future__" not in beginning[0]:
        return f"{prelude}\n{code}"
    return f"{beginning[0]}\n{prelude}\n{code[beginning.end() :]}"


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
       it. An unclosed fence reaches to the end. What stands inside a block opens nothing. The
       spaces before the opening fence are removed from its lines, if all that are not blank
       begin with them.
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
        text: the lines inside, without the indent of the fence.
        closed: false if the answer ended first.
    """

    tag: str
    text: str
    closed: bool


def blocks(answer: str) -> list[Block]:
    """All fenced blocks, in order; takes linear time."""
    found: list[Block] = []
    indent, fence, tag, start = "", "", "", 0
    for match in _FENCE.finditer(answer):
        if not fence:
            if not (match[2][0] == "`" and "`" in match[3]):
                indent, fence = match[1], match[2]
                tag, start = _first_word(match[3]), match.end()
        elif match[2].startswith(fence) and not match[3].strip():
            text = _dedented(answer[start : match.start()], indent)
            found.append(Block(tag=tag, text=text, closed=True))
            fence = ""
    if fence:
        found.append(Block(tag=tag, text=_dedented(answer[start:], indent), closed=False))
    return found


def _dedented(text: str, indent: str) -> str:
    """A block's text without the indent of its fence, as CommonMark 0.31 has it (4.5).

    CommonMark also shortens lines of a smaller indent. Here one such line keeps the text as it is:
    then the fence alone is indented, and the indent of the other lines is the code's own.
    """
    lines = text.split("\n")
    if not indent or any(line.strip() and not line.startswith(indent) for line in lines):
        return text
    return "\n".join(line.removeprefix(indent) for line in lines)


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0].lower() if words else ""
