"""Every compiled or interpreted language earns the same verdicts, in both tiers."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.languages import Language, languages
from services.reward_service.languages.language import Toolchain
from services.reward_service.sandbox import launcher
from services.reward_service.sandbox.language_check import LanguageCheck
from services.reward_service.scoring import Scoring
from tests.reward_service.programs import PROGRAMS, UNFINISHED

ENDS = {
    "add 20 1": ("21\n", Verdict.ACCEPTED),
    "add 20 2": ("21\n", Verdict.WRONG_ANSWER),
    "deep": ("9000\n", Verdict.ACCEPTED),
    "loop": ("", Verdict.TIME_LIMIT),
    "hoard": ("", Verdict.MEMORY_LIMIT),
    "huge": ("1\n", Verdict.MEMORY_LIMIT),
    "raise": ("", Verdict.RUNTIME_ERROR),
    "exit": ("", Verdict.RUNTIME_ERROR),
    "recurse": ("", Verdict.RUNTIME_ERROR),
    "flood": ("", Verdict.OUTPUT_LIMIT),
}
"""What each word makes a program do, and what it earns."""
GHOST = Language(
    name="ghost",
    tags=("ghost",),
    toolchain=Toolchain(compiler="ghostc", package="ghost-dev", flags=()),
)
TESTS = [{"stdin": "", "expected": ""}]
LIMITS = {"cpu_s": 2.0, "memory_mb": 128, "output_kb": 256}


def needs(name: str) -> None:
    """Skip where the tools of a language are missing."""
    if missing := languages()[name].missing():
        pytest.skip(missing)


def program_of(name: str) -> str:
    return f"```{languages()[name].tags[0]}\n{PROGRAMS[name]}```"


async def graded(scoring: Scoring, completion: str, name: str, **more: Any) -> Score:
    grader = CodeGrader.model_validate({"kind": "code", "language": name, **more})
    job = ScoreJob(job_id="j", completion=completion, grader=grader)
    (score,) = await asyncio.wait_for(scoring.score([job]), 600)
    if "only root may enter" in score.detail:
        pytest.skip(f"needs {name} where all users may enter")
    return score


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_program_earns_the_same_verdicts_in_every_language(
    scoring: Scoring, name: str
) -> None:
    needs(name)
    tests = [{"stdin": f"{word}\n", "expected": expected} for word, (expected, _) in ENDS.items()]
    score = await graded(
        scoring, program_of(name), name, tests=tests, policy="fraction", limits=LIMITS
    )
    found = {
        word: (test.verdict, test.detail) for word, test in zip(ENDS, score.tests, strict=False)
    }
    wrong = {
        word: found.get(word) for word, (_, verdict) in ENDS.items() if found[word][0] != verdict
    }
    assert wrong == {}, score
    assert score.reward == pytest.approx(2 / len(ENDS))


@pytest.mark.parametrize("tier", ["A", "B"])
async def test_programs_run_alike_where_slots_start_them_in_python(
    new_scoring: Any, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    """As they do where there is no C compiler when the service starts."""
    with monkeypatch.context() as patched:
        patched.setattr(launcher, "_COMPILERS", ())
        scoring = await new_scoring(tier, slots=1)
    words = [word for word in ENDS if word not in ("loop", "flood")]
    tests = [{"stdin": f"{word}\n", "expected": ENDS[word][0]} for word in words]
    try:
        for name in PROGRAMS:
            if languages()[name].missing() or scoring.sandbox.compiler.lacks(languages()[name]):
                continue
            score = await graded(
                scoring, program_of(name), name, tests=tests, policy="fraction", limits=LIMITS
            )
            found = {word: test.verdict for word, test in zip(words, score.tests, strict=True)}
            assert found == {word: ENDS[word][1] for word in words}, (name, score)
    finally:
        scoring.close()


@pytest.mark.parametrize("name", UNFINISHED)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_source_that_is_no_program_does_not_compile(scoring: Scoring, name: str) -> None:
    needs(name)
    score = await graded(scoring, f"```{name}\n{UNFINISHED[name]}\n```", name, tests=TESTS)
    assert (score.verdict, score.reward) == (Verdict.COMPILE_ERROR, 0.0), score
    assert score.detail


@pytest.mark.asyncio(loop_scope="session")
async def test_a_program_is_read_from_its_beginning_by_every_run_of_it(scoring: Scoring) -> None:
    """Also by several at a time: they share the file, and not their place in it."""
    needs("javascript")
    tests = [{"stdin": f"add {n} 1", "expected": str(n + 1)} for n in range(4)]
    grader = {"kind": "code", "language": "javascript", "limits": LIMITS}
    jobs = [
        ScoreJob(
            job_id=str(number),
            completion=program_of("javascript"),
            grader=CodeGrader.model_validate({**grader, "tests": tests[: number + 1]}),
        )
        for number in range(4)
    ]
    scores = await asyncio.wait_for(scoring.score(jobs), 300)
    assert {score.verdict for score in scores} == {Verdict.ACCEPTED}, scores


@pytest.mark.asyncio(loop_scope="session")
async def test_a_language_that_does_not_work_here_gives_no_answer_a_verdict(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter of another version may refuse its arguments, which is no answer's doing."""
    needs("javascript")
    runtime = languages()["javascript"].runtime
    assert runtime is not None
    refused = replace(runtime, arguments=("--no-such-option", *runtime.arguments))
    broken = replace(languages()["javascript"], runtime=refused)
    monkeypatch.setitem(languages(), "javascript", broken)
    monkeypatch.setattr(scoring.tools, "languages", LanguageCheck())
    score = await graded(scoring, "console.log(9)", "javascript", tests=TESTS)
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score
    assert "javascript does not work here: its sample ended with 9" in score.detail
    assert "--no-such-option" in score.detail
    assert scoring.healthy


@pytest.mark.asyncio(loop_scope="session")
async def test_a_compiler_that_cannot_link_gives_no_answer_a_verdict(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the static libraries are not installed: it is there, and makes no program."""
    needs("cpp17")
    toolchain = languages()["cpp17"].toolchain
    assert toolchain is not None
    missing = replace(toolchain, flags=(*toolchain.flags, "-lmissing"))
    monkeypatch.setitem(languages(), "cpp17", replace(languages()["cpp17"], toolchain=missing))
    monkeypatch.setattr(scoring.tools, "languages", LanguageCheck())
    monkeypatch.setattr(scoring.sandbox.compiler, "_versions", {})
    score = await graded(scoring, "int main(){}", "cpp17", tests=TESTS)
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score
    assert "cpp17 does not work here: its sample does not compile" in score.detail
    assert "-lmissing" in score.detail
    assert scoring.healthy


def test_every_language_that_has_tools_has_a_sample() -> None:
    for language in languages().values():
        tools = language.toolchain or language.runtime
        assert (tools is None) == (not language.sample), language.name


@pytest.mark.asyncio(loop_scope="session")
async def test_a_language_without_its_tool_is_the_tasks_fault_and_says_what_to_install(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(languages(), "ghost", GHOST)
    failures = scoring.config.failures_until_unhealthy + 5
    for number in range(failures):
        score = await graded(scoring, f"```ghost\n{number}\n```", "ghost", tests=TESTS)
        assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)
        assert "ghost needs ghostc, which is not here: `apt-get install ghost-dev`." in score.detail
    assert scoring.healthy
