"""docs/your-own-tasks.md, first section: four commands and one file to a curve of one's own."""

import json
from pathlib import Path

import pytest

from tests.operations.own_task import own_task_steps
from tests.operations.shell_walk import copy_clone, walk, why_no_namespaces

MOST_S = 900.0

pytestmark = [
    pytest.mark.timeout(MOST_S + 100),
    pytest.mark.skipif(why_no_namespaces() is not None, reason="no namespaces here, run as root"),
]


def test_the_curve_of_an_own_task_rises(tmp_path: Path) -> None:
    copy_clone(tmp_path)
    typed = [(one.name, one.text) for one in own_task_steps()]
    begins = next(number for number, (_, text) in enumerate(typed) if text.startswith("make task"))
    *_, demo = walk(tmp_path, typed[begins:], most_s=MOST_S)
    (run_dir,) = (tmp_path / "mine" / "runs").iterdir()
    assert str(run_dir.relative_to(tmp_path)) in demo.said
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["heldout_pass_rate_after"] > summary["heldout_pass_rate_before"] + 0.2
    answers = [json.loads(line) for line in (run_dir / "trajectories.jsonl").open()]
    right = [one["answer"] for one in answers if one["reward"]]
    assert right
    assert all("+" in answer.partition(")")[0] for answer in right), "the edited grader graded"
