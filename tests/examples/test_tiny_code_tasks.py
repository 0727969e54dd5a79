"""The example's tasks are fair: right answers pass, the taught bugs do not."""

from pathlib import Path

import pytest
import yaml

from examples.tiny_code.make_model import write_tasks
from examples.tiny_code.tasks import Spec, all_specs, split_specs, task_row
from services.orchestrator.tasks.task_table import load_tasks
from services.protocol.reward.code_graders import PythonFunctionGrader
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import Task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path)
    return load_tasks(path)


def _passes(spec: Spec, answer: str) -> bool:
    """Run an answer on the task's hidden calls, as the template says."""
    grader = Task.from_data(task_row(spec, "train"), source="task").grader
    assert isinstance(grader, PythonFunctionGrader)
    assert grader.template is not None
    scope: dict[str, object] = {}
    exec(grader.template.replace("{completion}", answer), scope)
    function = scope[grader.entry_point]
    assert callable(function)
    return all(function(*test.args) == test.expected for test in grader.tests)


def test_every_right_answer_passes_its_hidden_tests() -> None:
    assert all(_passes(spec, spec.answer(right=True)) for spec in all_specs())


def test_every_taught_bug_fails_them_unless_it_changes_nothing() -> None:
    passing = [spec for spec in all_specs() if _passes(spec, spec.answer(right=False))]
    assert not passing


def test_an_answer_may_be_written_differently() -> None:
    spec = Spec(inner="plus", x="a", y="b", outer="times", z="c")
    assert _passes(spec, "return c * (b + a)")
    assert not _passes(spec, "return c * b + a")


def test_a_fixed_fifth_is_held_out(tasks: list[Task]) -> None:
    heldout = [task.task_id for task in tasks if task.split == "heldout"]
    assert len(heldout) == round(len(tasks) / 5)
    assert heldout == [spec.task_id for spec in split_specs()[1]]


def test_no_prompt_is_in_both_splits(tasks: list[Task]) -> None:
    prompts = {
        split: {task.messages[0].content for task in tasks if task.split == split}
        for split in ("train", "heldout")
    }
    assert not prompts["train"] & prompts["heldout"]
    assert len(prompts["train"]) + len(prompts["heldout"]) == len(tasks) == 2268


def test_the_run_file_fits_the_laptop_deployment() -> None:
    run = RunConfig.from_yaml(ROOT / "examples" / "tiny_code" / "run.yaml")
    deploy = yaml.safe_load((ROOT / "deploy" / "laptop.yaml").read_text())
    engine = next(app for app in deploy["applications"] if app["name"] == "rollout_server")["args"]
    assert run.model == engine["served_model_name"]
    assert run.batch_groups * run.group_size <= engine["max_num_seqs"] * engine["replicas"]
    assert run.sampling.max_tokens < engine["max_model_len"]
