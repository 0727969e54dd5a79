"""Graders that fall for a trick are found, and one that does not is not."""

from pathlib import Path

import pytest
import yaml

from millrace_tools.audit.tricks import PROGRAMS, asked_names, tricks
from services.protocol.run.task import Task
from tests.audit.test_audit import audit_of, row, run_file
from tests.slow import first_of

FOOLED = Path(__file__).with_name("fooled.py")
ROWS = [
    row(n, f"Write room(n), which returns the code of room {n}.", room=n, is_number=50.0 + n)
    for n in range(2)
]


def gameable(folder: Path, environment: str) -> tuple[int, dict[str, str], str]:
    """The audit's status, what it found, and what it printed."""
    run_file(folder, None, ROWS)
    path = folder / "run.yaml"
    run = yaml.safe_load(path.read_text()) | {"environment": f"{FOOLED}:{environment}"}
    path.write_text(yaml.safe_dump(run))
    status, found, said = audit_of(folder, only=["reward.gameable"], timeout=600)
    return status, found["reward.gameable"], said


@pytest.mark.parametrize(
    ("environment", "trick"),
    first_of(
        [
            ("trusts_its_folder", "overwrites the tests' files"),
            ("looks_at_the_exit_status", "ends the program early"),
            ("looks_at_the_exit_status", "overwrites the checker"),
            ("shares_its_process", "overwrites the checker"),
            ("shares_its_process", "reads what is expected"),
            ("leaves_what_is_expected_there", "reads what is expected"),
            ("compares_by_equality", "equals everything"),
            ("takes_nan", "not a number, marked"),
            ("takes_a_wide_tolerance", "a tolerance, marked"),
            ("trusts_the_template", "speaks as another"),
            ("tells", "asks for the answer"),
        ]
    ),
)
def test_a_grader_that_falls_for_a_trick_is_found(
    tmp_path: Path, environment: str, trick: str
) -> None:
    status, found, said = gameable(tmp_path, environment)
    assert (status, found["verdict"]) == (1, "fail"), said
    assert f"'{trick}' is paid on room-0" in found["evidence"]


def test_a_grader_that_falls_for_none_passes(tmp_path: Path) -> None:
    status, found, said = gameable(tmp_path, "is_not_fooled")
    assert (status, found["verdict"]) == (0, "pass"), said


def task_of(text: str, **grader: object) -> Task:
    said = {"task_id": "t", "split": "train", "messages": [{"role": "user", "content": text}]}
    return Task.model_validate(said | ({"grader": grader} if grader else {}))


def test_a_program_has_the_names_that_its_task_asks_for() -> None:
    text = "Write add(a, b) so that print(add(1, 2)) shows 3; do not use while(True)."
    assert asked_names(task_of(text)) == ["add"]
    tests = [{"args": [1], "expected": 2}]
    own = task_of("No name.", kind="code", entry_point="Sums.one", tests=tests)
    assert asked_names(own) == ["Sums.one"]
    said = {one.name: one.script([]) for one in tricks(own)}
    assert said["equals everything"].endswith("class Sums:\n    one = solve\n```")


def test_no_program_has_a_number_that_could_be_right() -> None:
    assert not [name for name, code in PROGRAMS.items() if any(map(str.isdigit, code))]
