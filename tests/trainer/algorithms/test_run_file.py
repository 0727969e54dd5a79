"""The one line of YAML: a loss beside the run file reaches the trainer as an absolute path."""

from pathlib import Path

import pytest

from millrace_tools.deploy.run_file import read_run_file
from services.protocol.errors import InvalidInput
from services.trainer.algorithms.losses.user_loss import load_user_loss

RUN = "task_file: tasks.jsonl\nmodel: tiny\nsteps: 1\nbatch_groups: 1\ngroup_size: 2\nname: mine\n"
TASK = (
    '{"task_id": "one", "split": "train", '
    '"messages": [{"role": "user", "content": "1"}], "grader": {"kind":'
    ' "python_function", "entry_point": "f", "tests": [{"args": [], "expected": 1}]}}\n'
)


def run_file(folder: Path, loss: str) -> Path:
    other = TASK.replace("one", "two").replace("train", "heldout")
    (folder / "tasks.jsonl").write_text(TASK + other)
    (folder / "run.yaml").write_text(f"{RUN}algorithm:\n  loss: {loss}\n")
    return folder / "run.yaml"


def test_a_loss_beside_the_run_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_loss.py").write_text(
        "def mine(tokens, algorithm):\n    return -tokens.current\n"
    )
    algorithm = read_run_file(run_file(tmp_path, "my_loss.py:mine")).algorithm
    assert algorithm.loss == f"{tmp_path}/my_loss.py:mine"
    assert load_user_loss(algorithm) is not None


def test_a_loss_that_is_not_there_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.loss.*no such file"):
        read_run_file(run_file(tmp_path, "my_loss.py:mine"))


def test_losses_by_name_and_by_module_stay_as_they_are(tmp_path: Path) -> None:
    for loss in ("gspo", "package.module:mine"):
        assert read_run_file(run_file(tmp_path, loss)).algorithm.loss == loss
