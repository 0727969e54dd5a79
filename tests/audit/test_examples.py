"""Audits of our own examples, which have no defect that is known."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import make_tasks
from examples.shop import tasks as shop
from examples.tiny_code.make_model import write_tasks
from tests.audit.test_audit import audit_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def rows_of(rows: Callable[[], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows()))

    return write


EXAMPLES = [
    ("shop", "rollout", rows_of(shop.rows)),
    ("arithmetic", "answer", rows_of(make_tasks.tasks)),
    ("arithmetic", "agent", rows_of(make_tasks.tasks)),
    ("tiny_code", None, write_tasks),
]


def copy_example(
    folder: Path, name: str, environment: str | None, write: Callable[[Path], None]
) -> None:
    """The run file of an example, with its tasks and the environment of this name."""
    example = ROOT / "examples" / name
    run = (example / "run.yaml").read_text()
    if environment is not None:
        shutil.copy(example / "environment.py", folder)
        run = run.replace("environment.py:answer", f"environment.py:{environment}")
    (folder / "run.yaml").write_text(run)
    write(folder / "tasks.jsonl")


@pytest.mark.parametrize(("name", "environment", "write"), EXAMPLES)
def test_no_example_fails(
    tmp_path: Path, name: str, environment: str | None, write: Callable[[Path], None]
) -> None:
    copy_example(tmp_path, name, environment, write)
    status, found, said = audit_of(tmp_path, tasks=8, episodes=40)
    assert status == 0, said
    assert len(found) == 21
