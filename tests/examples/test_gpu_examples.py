"""The run files for GPUs, with stand-ins of their data: whole, gradable, fit for the cluster."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from examples.deepcoder import prepare as deepcoder
from examples.gsm8k import prepare as gsm8k
from millrace_tools.main import main
from services.orchestrator.tasks.task_table import load_tasks
from services.protocol.reward.code_graders import PythonStdioGrader
from services.protocol.reward.grader import MathsGrader

ROOT = Path(__file__).parents[2]
CLUSTER = str(ROOT / "deploy" / "cluster.yaml")


@pytest.fixture(params=["gsm8k", "deepcoder"])
def example(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of an example, its stand-in tasks written."""
    prepare = {"gsm8k": gsm8k, "deepcoder": deepcoder}[request.param]
    shutil.copy(ROOT / "examples" / request.param / "run.yaml", tmp_path)
    out = str(tmp_path / "tasks.jsonl")
    monkeypatch.setattr(sys, "argv", ["prepare", "--stand-in", "--out", out])
    prepare.main()
    return tmp_path


def test_a_run_file_fits_the_cluster_but_for_the_size_of_the_stand_in(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(example / "run.yaml")
    assert main(["run", file, "--dry-run", "--deployment", CLUSTER]) == 2
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == 1, problems
    assert "There are 4 tasks to learn from, so a batch would hold some twice" in problems[0]


def test_stand_ins_become_tasks_with_the_right_answer_in_their_grader(example: Path) -> None:
    tasks = load_tasks(example / "tasks.jsonl")
    assert [task.split for task in tasks] == ["train"] * 4 + ["heldout"] * 2
    first = tasks[2].grader
    if isinstance(first, MathsGrader):
        assert first.expected == "1,791"
    else:
        assert isinstance(first, PythonStdioGrader)
        assert (first.tests[0].stdin, first.tests[0].expected) == ("1 2 3\n", "18\n")


def test_tests_of_every_form_are_read_and_those_that_call_a_function_left_out() -> None:
    one = [{"stdin": "1\n", "expected": "2\n"}]
    assert deepcoder.stdin_tests('[{"input": "1\\n", "output": "2\\n"}]') == one
    assert deepcoder.stdin_tests('{"inputs": ["1\\n"], "outputs": ["2\\n"]}') == one
    functional = '[{"input": "1", "output": "2", "testtype": "functional"}]'
    assert deepcoder.stdin_tests(functional) == []
    assert deepcoder.stdin_tests('{"fn_name": "f", "inputs": [[1]], "outputs": [2]}') == []


@pytest.mark.parametrize("example", ["gsm8k", "deepcoder"])
def test_the_readme_names_as_many_rollout_servers_as_the_deployment_has(example: str) -> None:
    said = (ROOT / "examples" / example / "README.md").read_text(encoding="utf-8")
    deploy = yaml.safe_load((ROOT / "deploy" / "cluster.yaml").read_text(encoding="utf-8"))
    (servers,) = (one for one in deploy["applications"] if one["name"] == "rollout_server")
    number = {4: "four", 8: "eight"}[servers["args"]["replicas"]]
    assert f"the {number} rollout servers of `deploy/cluster.yaml`" in said
