"""What a policy might try in Rust, JavaScript, Java and Go, in both tiers."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.scoring import Scoring
from tests.redteam.attack import CANARIES, SECRET
from tests.redteam.on_cpp_programs import CppAttack
from tests.redteam.on_go import GO_ATTACKS, go_program
from tests.redteam.on_java import JAVA_ATTACKS, java_program
from tests.redteam.on_javascript import JAVASCRIPT_ATTACKS, javascript_program
from tests.redteam.on_rust import RUST_ATTACKS, RUST_SOURCES, rust_program
from tests.redteam.test_cpp import got_through, inputs_of, left_on_disk
from tests.reward_service.test_languages import graded, needs

pytestmark = pytest.mark.usefixtures("nothing_grows")
ATTACKS: dict[str, tuple[dict[str, CppAttack], Callable[[dict[str, CppAttack]], str]]] = {
    "rust": (RUST_ATTACKS, rust_program),
    "javascript": (JAVASCRIPT_ATTACKS, javascript_program),
    "java": (JAVA_ATTACKS, java_program),
    "go": (GO_ATTACKS, go_program),
}
LIMITS = {"cpu_s": 1.0, "memory_mb": 96}


async def attacked(
    scoring: Scoring, source: str, name: str, attacks: dict[str, CppAttack]
) -> list[Score]:
    """A program that holds the attacks, in each answer's tests."""
    return [
        await graded(scoring, source, name, tests=tests, policy="fraction", limits=LIMITS)
        for tests in inputs_of(attacks)
    ]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", ATTACKS)
async def test_every_attack_of_a_program_ends_as_it_should_and_changes_nothing_for_others(
    scoring: Scoring, processes_of, function_job, request, canary_file: Path, name: str
) -> None:
    needs(name)
    costly = request.config.getoption("--all-attacks", default=False)
    known, program_of = ATTACKS[name]
    attacks = {title: one for title, one in known.items() if costly or not one.costly}
    before = processes_of(scoring)
    source = program_of(attacks).replace("CANARY", str(canary_file))
    scores = await attacked(scoring, f"```{name}\n{source}\n```", name, attacks)
    assert all(score.compile is None or score.compile.ok for score in scores), scores
    assert got_through(attacks, scores) == []
    assert {score.reward for score in scores} == {0.0}
    assert not any(canary in str(scores) for canary in CANARIES.values())
    assert processes_of(scoring) == before
    assert left_on_disk() == []
    honest = function_job(f"def f(a, b):\n    return a + b  # beside {name}")
    (after,) = await asyncio.wait_for(scoring.score([honest]), 300)
    assert after.verdict is Verdict.ACCEPTED


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", RUST_SOURCES)
async def test_a_rust_source_ends_as_it_should(
    scoring: Scoring, request, canary_file: Path, name: str
) -> None:
    needs("rust")
    attack = RUST_SOURCES[name]
    if attack.costly and not request.config.getoption("--all-attacks", default=False):
        pytest.skip("takes seconds; --all-attacks")
    source = attack.code.replace("CANARY", str(canary_file))
    tests = [{"stdin": "", "expected": f"{SECRET}\n"}]
    score = await graded(scoring, f"```rust\n{source}\n```", "rust", tests=tests)
    assert score.verdict in attack.ends, score
    assert score.reward == 0.0
    assert not any(canary in str(score) for canary in (*CANARIES.values(), "root:"))


def test_there_are_enough_of_them_and_each_is_another() -> None:
    for known, _ in ATTACKS.values():
        assert len({attack.body for attack in known.values()}) == len(known) >= 25
