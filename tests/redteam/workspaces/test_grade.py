"""The graders' attacks on verdict and resources, as what a workspace holds when it is graded."""

from typing import Any

import pytest

from services.protocol.reward.reward_service import Score, Verdict
from services.protocol.reward.workspace_tests import GradeWorkspace
from services.reward_service.workspace_api.grading import Grading
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.attack import CANARIES, SECRET
from tests.redteam.on_resources import ON_RESOURCES
from tests.redteam.on_the_verdict import IN_A_FUNCTION, IN_A_PROGRAM
from tests.redteam.test_reward_hacks import HACKS
from tests.redteam.workspaces.conftest import Open
from tests.reward_service.workspace_api.conftest import FakeReward

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.asyncio(loop_scope="session"),
]
LIMITS = {"wall_s": 3.0, "cpu_s": 0.3, "memory_mb": 96, "output_kb": 64}
SPEC = {"memory_mb": 128, "disk_mb": 16, "processes": 32}
CHECK = "import sys\nsys.path.insert(0, '.')\nmodule = __import__(sys.argv[1])\n"
CHECKS = {"f.py": f"{CHECK}print(module.f())", "f7.py": f"{CHECK}print(module.f(7))"}
"""Both run code of the workspace in their own process, and no expected value is in it."""
ALLOWED = {"larger pipes": "they may be larger; on_space.py fills them"}
RIGHT = f"def f(*_):\n    return {SECRET}"

FAMILIES: dict[str, tuple[dict[str, str], list[str]]] = {
    "programs": (
        {name: attack.code for name, attack in IN_A_PROGRAM.items()},
        ["python3", "NAME.py"],
    ),
    "functions": (
        {name: attack.code for name, attack in IN_A_FUNCTION.items()},
        ["python3", "{tests}/f.py", "NAME"],
    ),
    "hacks": (HACKS, ["python3", "{tests}/f7.py", "NAME"]),
    "resources": (
        {name: attack.code for name, attack in ON_RESOURCES.items()},
        ["python3", "{tests}/f.py", "NAME"],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_no_attack_in_a_workspace_earns_anything_or_has_no_verdict(
    workspaces: Workspaces, new_workspace: Open, request: pytest.FixtureRequest, family: str
) -> None:
    attacks, argv = FAMILIES[family]
    every = request.config.getoption("--all-attacks", default=False)
    names = [name for number, name in enumerate(attacks) if every or number % 2 == 0]
    names = [name for name in names if name not in ALLOWED]
    files = {f"a{number}.py": attacks[name] for number, name in enumerate(names)}
    workspace = await new_workspace(files={**files, "right.py": RIGHT}, **SPEC)
    tests = [
        _test([part.replace("NAME", f"a{number}") for part in argv]) for number in range(len(names))
    ]
    # A busy machine may take seconds to start a right answer; only the attacks need a short limit.
    tests.append({**_test(["python3", "{tests}/f7.py", "right"]), "wall_s": 60.0})
    how = {"tests": tests, "files": CHECKS, "policy": "fraction"}
    grading = Grading(workspaces, FakeReward(), WorkspacesConfig())
    score = await grading.grade(workspace, GradeWorkspace.model_validate(how))
    assert _wrong(score, names) == []
    assert score.tests[-1].verdict is Verdict.ACCEPTED, "a right answer beside them"
    assert score.reward == pytest.approx(1 / len(tests))
    shown = str(score)
    assert not any(canary in shown for canary in CANARIES.values())


def _test(argv: list[str]) -> dict[str, Any]:
    return {"argv": argv, "stdin": "7\n", "expected": f"{SECRET}\n", **LIMITS}


def _wrong(score: Score, names: list[str]) -> list[str]:
    """Attacks that were accepted or not judged."""
    judged = [one.verdict for one in score.tests]
    assert len(judged) == len(names) + 1, score
    failed = set(Verdict) - {Verdict.ACCEPTED, Verdict.INFRA_ERROR}
    return [
        f"{name}: {verdict}"
        for name, verdict in zip(names, judged[:-1], strict=True)
        if verdict not in failed
    ]
