"""What a policy might try in Python, in both tiers: nothing gets out, nobody is hindered."""

import asyncio
import itertools
import platform
from typing import Any

import pytest

from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.scoring import Scoring
from tests.redteam.attack import CANARIES, SECRET, Attack
from tests.redteam.on_resources import ON_RESOURCES
from tests.redteam.on_the_machine import FILES, SYSTEM_CALLS
from tests.redteam.on_the_verdict import IN_A_FUNCTION, IN_A_PROGRAM

pytestmark = pytest.mark.usefixtures("nothing_grows")

FAMILIES = {
    "call": SYSTEM_CALLS if platform.machine() == "x86_64" else {},
    "file": FILES,
    "value": IN_A_FUNCTION,
    "program": IN_A_PROGRAM,
    "resource": ON_RESOURCES,
}
ATTACKS = {
    f"{family}: {name}": attack
    for family, attacks in FAMILIES.items()
    for name, attack in attacks.items()
}
_numbers = itertools.count()


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_ends_as_it_should_and_changes_nothing_for_others(
    scoring: Scoring, function_job, program_job, processes_of, request, name: str
) -> None:
    attack = ATTACKS[name]
    if attack.costly and not request.config.getoption("--all-attacks", default=False):
        pytest.skip("takes seconds; --all-attacks")
    before = processes_of(scoring)
    job = job_of(attack, function_job, program_job)
    score, neighbour = await asyncio.wait_for(scoring.score([job, _honest(function_job)]), 300)
    assert score.verdict in attack.ends, score
    assert score.reward == 0.0
    shown = str(score)
    assert not any(canary in shown for canary in CANARIES.values())
    assert str(SECRET) in attack.code or str(SECRET) not in shown
    assert neighbour.verdict is Verdict.ACCEPTED
    assert processes_of(scoring) == before
    (after,) = await asyncio.wait_for(scoring.score([_honest(function_job)]), 300)
    assert after.verdict is Verdict.ACCEPTED


def test_there_are_enough_of_them_and_each_is_another() -> None:
    assert len({attack.code for attack in ATTACKS.values()}) == len(ATTACKS) >= 100


@pytest.mark.parametrize("name", ["read the hosts", "list the root", "read the first process"])
def test_an_attack_gets_through_where_no_sandbox_is(name: str) -> None:
    """So that a table whose attacks could succeed nowhere would be seen."""
    answer: dict[str, Any] = {}
    exec(FILES[name].code, answer)
    assert answer["f"]() == SECRET


@pytest.mark.asyncio(loop_scope="session")
async def test_what_an_answer_changes_in_its_interpreter_is_gone_in_the_next(
    scoring: Scoring, function_job
) -> None:
    """As many as there are slots leave a mark wherever they can; none after them finds one."""
    leave = (
        "import builtins, gc, os, random, sys\nfor place in (builtins, sys, os, random):\n"
        "    place.millrace_mark = 1\nsys.modules['mark'] = sys\nos.environ['MARK'] = '1'\n"
        "sys.setrecursionlimit(77)\nsys.path.insert(0, 'mark')\nrandom.seed(77)\n"
        "def f():\n    return 1"
    )
    look = (
        "import builtins, os, random, sys\ndef f():\n"
        "    return [hasattr(p, 'millrace_mark') for p in (builtins, sys, os, random)] + "
        "['mark' in sys.modules, 'MARK' in os.environ, sys.getrecursionlimit() == 77, "
        "'mark' in sys.path]"
    )
    marks = [function_job(f"{leave}\n# {n}", [([], 1)]) for n in range(6)]
    looks = [function_job(f"{look}\n# {n}", [([], [False] * 8)]) for n in range(6)]
    scores = await asyncio.wait_for(scoring.score([*marks, *looks]), 300)
    assert {score.verdict for score in scores} == {Verdict.ACCEPTED}, scores


def job_of(attack: Attack, function_job, program_job) -> ScoreJob:
    limits = {"cpu_s": attack.cpu_s, "memory_mb": 96}
    if attack.program:
        return program_job(attack.code, [("", f"{SECRET}\n")], **limits)
    return function_job(attack.code, [([], SECRET)], **limits)


def _honest(function_job) -> ScoreJob:
    """Never one that the cache knows."""
    return function_job(f"def f(a, b):\n    return a + b  # {next(_numbers)}")
