"""`millrace audit` finds what is planted, and lets what is good pass."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slow import first_of

ZOO = Path(__file__).with_name("zoo.py")


def audited(
    folder: Path, environment: str | None, rows: list[dict[str, Any]], **options: Any
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit status, findings by check, and what was printed."""
    run_file(folder, environment, rows)
    return audit_of(folder, **{"episodes": 40, "timeout": 600, **options})


def run_file(folder: Path, environment: str | None, rows: list[dict[str, Any]]) -> None:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: dict[str, Any] = {"name": "audited", "task_file": "tasks.jsonl", "model": "m", "steps": 1}
    run |= {"batch_groups": 1, "group_size": 2}
    if environment is not None:
        own = environment == "external"
        run["environment"] = environment if own else f"{ZOO}:{environment}"
    (folder / "run.yaml").write_text(yaml.safe_dump(run))


def audit_of(
    folder: Path, environment: str = "", **options: Any
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Of an environment that has a name, or of the folder's run file."""
    name = environment or str(folder / "run.yaml")
    given = {"out": folder / "audit", **options}
    words = [
        word
        for name, value in given.items()
        for word in (f"--{name.replace('_', '-')}", *map(str, listed(value)))
    ]
    done = subprocess.run(
        [sys.executable, "-m", "millrace_tools.main", "audit", name, *words],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    report = folder / "audit" / "audit.json"
    found = json.loads(report.read_text())["findings"] if report.exists() else []
    return done.returncode, {one["check"]: one for one in found}, done.stdout + done.stderr


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def row(number: int, said: str = "", **data: Any) -> dict[str, Any]:
    said = said or f"What is the code of room {number}?"
    return {
        "task_id": f"room-{number}",
        "split": "train" if number else "heldout",
        "messages": [{"role": "user", "content": said}],
        "data": {"answer": f"k{1000 + 37 * number}", **data},
    }


ROWS = [row(number) for number in range(8)]


def test_a_good_environment_passes(tmp_path: Path) -> None:
    status, found, said = audited(tmp_path, "good", ROWS)
    assert status == 0, said
    del found["operations.time"]  # which says how busy the machine is
    assert {one["verdict"] for one in found.values()} <= {"pass", "not measured"}, said
    assert found["reward.reference"]["rfc_008"] == "semantic.oracle_max"
    assert found["reward.failure"]["rfc_008"] is None
    assert (tmp_path / "audit" / "audit.html").read_text().count("<tr>") > len(found)


LEAKED = [row(n, f"Room {n}. The note on the door says: k{1000 + 37 * n}") for n in range(8)]


@pytest.mark.parametrize(
    ("environment", "rows", "check", "words"),
    first_of(
        [
            ("pays_silence", ROWS, "reward.worthless", "'empty' is paid on room-0"),
            ("pays_failures", ROWS, "reward.failure", "became a reward: room-0: 0"),
            ("too_busy_is_wrong", ROWS, "reward.load", "1, then 0"),
            ("by_order", ROWS, "reward.reproducible", "then"),
            ("leaks", LEAKED, "reward.leak", "word 1 from the end of the task is paid on 100%"),
            ("raises", ROWS, "operations.failures", "8 of 8 failed, as in: environment_raised"),
            ("grows", ROWS, "operations.memory", "an episode"),
        ]
    ),
)
def test_a_planted_defect_is_found(
    tmp_path: Path, environment: str, rows: list[dict[str, Any]], check: str, words: str
) -> None:
    status, found, said = audited(tmp_path, environment, rows, only=[check])
    assert status == 1, said
    assert found[check]["verdict"] == "fail", said
    assert words in found[check]["evidence"]


def test_nothing_passes_where_no_episode_has_a_reward(tmp_path: Path) -> None:
    _, found, said = audited(tmp_path, "raises", ROWS, only=["reward", "operations.failures"])
    assert found.pop("operations.failures")["verdict"] == "fail"
    assert found.pop("reward.failure")["verdict"] == "pass"
    assert {one["verdict"] for one in found.values()} == {"not measured"}, said


def graded(number: int, kind: str, **grader: Any) -> dict[str, Any]:
    return row(number) | {"grader": {"kind": kind, **grader}}


def test_tasks_with_a_grader_need_no_environment(tmp_path: Path) -> None:
    rows = [graded(n, "exact", expected=f"k{1000 + 37 * n}") for n in range(8)]
    status, found, said = audited(tmp_path, None, rows)
    assert status == 0, said
    assert found["reward.worthless"]["verdict"] == "pass"
    assert found["operations.memory"]["verdict"] == "not measured"


def test_one_episode_alone_has_its_time(tmp_path: Path) -> None:
    only = ["operations.time"]
    status, found, said = audited(tmp_path, "good", ROWS, only=only, tasks=1, episodes=1)
    assert status == 0, said
    assert found["operations.time"]["evidence"].startswith("median ")


@pytest.mark.parametrize("option", ["tasks", "episodes", "parallel", "timeout"])
def test_a_bad_option_is_named(tmp_path: Path, option: str) -> None:
    status, _, said = audited(tmp_path, "good", ROWS, **{option: 0})
    assert status == 2
    assert f"--{option}" in said
