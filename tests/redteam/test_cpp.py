"""What a policy might try in C++, in both tiers: in the compiler, and in the program it makes."""

import asyncio
import itertools
import platform
import shutil
from pathlib import Path

import pytest

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.scoring import Scoring
from tests.redteam.attack import CANARIES, SECRET
from tests.redteam.on_cpp_programs import CPP_ATTACKS, CppAttack, program
from tests.redteam.on_the_compiler import SOURCE_ATTACKS

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.asyncio(loop_scope="session"),
]
LEFT = ("/tmp/millrace-attack", "/dev/shm/millrace-attack")
_numbers = itertools.count()


def chosen(*, costly: bool) -> dict[str, CppAttack]:
    known = platform.machine() == "x86_64"
    return {
        name: attack
        for name, attack in CPP_ATTACKS.items()
        if (costly or not attack.costly) and (known or not name.startswith("call"))
    }


def program_attacks(attacks: dict[str, CppAttack]) -> list[ScoreJob]:
    """Answers that hold the attacks, with the tests that choose one."""
    source = f"```cpp\n{program(attacks)}\n```"
    jobs = []
    for tests in inputs_of(attacks):
        limits = {"cpu_s": 0.3, "memory_mb": 96}
        grader = {"kind": "code", "language": "cpp17", "tests": tests, "policy": "fraction"}
        grader = CodeGrader.model_validate({**grader, "limits": limits})
        jobs.append(ScoreJob(job_id=f"attacks{len(jobs)}", completion=source, grader=grader))
    return jobs


def inputs_of(attacks: dict[str, CppAttack]) -> list[list[dict[str, str]]]:
    """The tests of each answer, one for each attack: the expected output says that it got through.

    The costly ones have an answer each, as each uses up the time of one.
    """
    costly = [[number] for number, attack in enumerate(attacks.values()) if attack.costly]
    rest = [number for number, attack in enumerate(attacks.values()) if not attack.costly]
    return [
        [{"stdin": f"{number}\n", "expected": f"{SECRET}\n"} for number in numbers]
        for numbers in (rest, *costly)
    ]


def got_through(attacks: dict[str, CppAttack], scores: list[Score]) -> list[str]:
    """Names and verdicts of the attacks that did not end as they should."""
    order = [one for costly in (False, True) for one in attacks.items() if one[1].costly is costly]
    ends = [test for score in scores for test in sorted(score.tests, key=lambda test: test.test)]
    return [
        f"{name}: {end.verdict} {end.output} {end.detail}"
        for (name, attack), end in zip(order, ends, strict=True)
        if end.verdict not in attack.ends
    ]


async def test_every_attack_of_a_program_ends_as_it_should_and_changes_nothing_for_others(
    scoring: Scoring, function_job, processes_of, request
) -> None:
    attacks = chosen(costly=request.config.getoption("--all-attacks", default=False))
    before = processes_of(scoring)
    honest = [_honest(function_job) for _ in range(8)]
    hostile = program_attacks(attacks)
    answers = await asyncio.wait_for(scoring.score([*hostile, *honest]), 300)
    scores, neighbours = answers[: len(hostile)], answers[len(hostile) :]
    assert all(score.compile is not None and score.compile.ok for score in scores), scores
    assert got_through(attacks, scores) == []
    assert {score.reward for score in scores} == {0.0}
    assert not any(canary in str(scores) for canary in CANARIES.values())
    assert {one.verdict for one in neighbours} == {Verdict.ACCEPTED}, neighbours
    assert processes_of(scoring) == before
    assert left_on_disk() == []
    (after,) = await asyncio.wait_for(scoring.score([_honest(function_job)]), 300)
    assert after.verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("name", SOURCE_ATTACKS)
async def test_a_source_ends_as_it_should_and_changes_nothing_for_others(
    scoring: Scoring, function_job, processes_of, request, canary_file: Path, name: str
) -> None:
    attack = SOURCE_ATTACKS[name]
    if attack.costly and not request.config.getoption("--all-attacks", default=False):
        pytest.skip("takes seconds; --all-attacks")
    before, folders = processes_of(scoring), _build_folders(scoring)
    given = {"args": []} if attack.calls else {"stdin": ""}
    grader = {"kind": "code", "language": "cpp17", "entry_point": "f" if attack.calls else None}
    tests = [{**given, "expected": SECRET if attack.calls else f"{SECRET}\n"}]
    job = ScoreJob(
        job_id=name,
        completion=f"```cpp\n{attack.code.replace('CANARY', str(canary_file))}\n```",
        grader=CodeGrader.model_validate({**grader, "tests": tests}),
    )
    score, neighbour = await asyncio.wait_for(scoring.score([job, _honest(function_job)]), 300)
    assert score.verdict in attack.ends, score
    assert score.reward == 0.0
    assert not any(canary in str(score) for canary in (*CANARIES.values(), "root:"))
    assert neighbour.verdict is Verdict.ACCEPTED
    assert processes_of(scoring) == before
    assert _build_folders(scoring) == folders
    (after,) = await asyncio.wait_for(scoring.score([_honest(function_job)]), 300)
    assert after.verdict is Verdict.ACCEPTED


async def test_there_are_enough_of_them_and_each_is_another() -> None:
    bodies = {attack.body for attack in CPP_ATTACKS.values()}
    codes = {attack.code for attack in SOURCE_ATTACKS.values()}
    assert len(bodies) == len(CPP_ATTACKS) >= 100
    assert len(codes) == len(SOURCE_ATTACKS) >= 30


def left_on_disk() -> list[str]:
    return [path for path in LEFT if Path(path).exists()]


def _build_folders(scoring: Scoring) -> set[str]:
    compiler = scoring.sandbox.compiler
    assert compiler is not None
    return {path.name for path in compiler._folder.glob("build-*")}


def _honest(function_job) -> ScoreJob:
    """Never one that the cache knows."""
    return function_job(f"def f(a, b):\n    return a + b  # beside C++ {next(_numbers)}")
