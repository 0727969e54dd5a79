"""What docs/your-own-tasks.md shows can be pasted, and its tables say what the code says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import PydanticUndefined
from rich.console import Console

from millrace_tools import main as command_line
from millrace_tools.deploy.run_file import read_run_file
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.tasks.task_table import TaskTable, load_tasks
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import PythonFunctionGrader, PythonStdioGrader
from services.protocol.reward.code_tests import FunctionTest, Limits, StdioTest
from services.protocol.reward.reward_service import Verdict
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import Message, Task, TaskSource
from services.protocol.strict import StrictModel
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-own-tasks.md").read_text(encoding="utf-8")


def _of(model: type[StrictModel], prefix: str = "", *, deep: bool = True) -> dict[str, Any]:
    """Dotted names and defaults of a model's fields, as the page's tables have them."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.default, StrictModel):
            nested = _of(type(field.default), f"{prefix}{name}.") if deep else {}
            fields |= nested or {f"{prefix}{name}": "see below"}
        else:
            required = field.default is PydanticUndefined
            fields[f"{prefix}{name}"] = "required" if required else field.default
    return fields


def _rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its two lines of header."""
    _, _, section = PAGE.partition(f"# {heading}\n")
    lines = section[section.index("\n|") :].strip().split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _default(cell: str) -> Any:
    try:
        return json.loads(cell.strip("`"))
    except ValueError:
        return cell.strip("`")


@pytest.fixture
def my_tasks(tmp_path: Path) -> Path:
    """The folder that a reader has after pasting every block under a file's name."""
    for name, text in re.findall(r"`(my_tasks/[\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / "my_tasks"


def test_the_files_of_the_page_can_be_run(my_tasks: Path) -> None:
    run = read_run_file(my_tasks / "run.yaml")
    deploy = yaml.safe_load((ROOT / "deploy" / "laptop.yaml").read_text())
    engine = next(app for app in deploy["applications"] if app["name"] == "rollout_server")["args"]
    assert run.model == engine["served_model_name"]
    assert run.task_file == str(my_tasks / "tasks.jsonl")


def test_each_task_accepts_what_its_words_ask_for(my_tasks: Path) -> None:
    tasks = load_tasks(my_tasks / "tasks.jsonl")
    assert len(tasks) == 8
    for task in tasks:
        assert isinstance(task.grader, PythonFunctionGrader)
        assert task.grader.template is not None
        scope: dict[str, Any] = {}
        exec(task.grader.template.replace("{completion}", _right_answer(task)), scope)
        for test in task.grader.tests:
            assert scope[task.grader.entry_point](*test.args) == test.expected


def _right_answer(task: Task) -> str:
    first, second = task.messages[-1].content.split(", ")
    answer = f"return ({first}) {second}"
    for word, sign in (("plus", "+"), ("minus", "-"), ("times", "*")):
        answer = answer.replace(word, sign)
    return answer


def test_every_json_line_of_the_page_is_a_task() -> None:
    lines = "".join(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    tasks = [Task.model_validate_json(line) for line in lines]
    assert {task.grader.kind for task in tasks} == {"python_function", "python_stdio"}


def test_a_mistake_is_answered_as_the_page_says(my_tasks: Path) -> None:
    file = my_tasks / "tasks.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace('"split": "train"', '"split": "test"')
    file.write_text("\n".join(lines))
    with pytest.raises(InvalidInput) as caught:
        TaskTable(read_run_file(my_tasks / "run.yaml"))
    problem = caught.value
    field = problem.field.replace(str(my_tasks.parent), "/home/me/millrace")
    assert f"\nerror: {field}: {problem.value!r} -> {problem.fix}\n" in PAGE


def test_grading_ones_own_answers_prints_what_the_page_shows(
    my_tasks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "Console", lambda: Console(force_terminal=True, width=60))
    monkeypatch.chdir(my_tasks.parent)
    commands = re.findall(r"^millrace (grade --task-file my_tasks.*)$", PAGE, re.M)
    assert [command_line.main(shlex.split(one)) for one in commands] == [0, 1]
    head, first, second, end = map(_without_figures, capsys.readouterr().out.splitlines()[-4:])
    page = [_without_figures(line) for line in PAGE.splitlines()]
    assert [line for line in (head, first, end) if line not in page] == []
    # On a busy machine the second test has begun before the first one is judged.
    assert second in page or second.startswith("2 wrong_answer f(2, 14, 15): wrong result -27")


def _without_figures(line: str) -> str:
    """A row without its times and memory, which differ from run to run."""
    return re.sub(r" +", " ", re.sub(r"(\w+) +[\d.]+ +[\d.]+ +\d+ ", r"\1 ", line)).strip()


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("The task file", _of(Task) | _of(Message, "messages.")),
        (
            "`python_function`: call a function",
            _of(PythonFunctionGrader, "grader.", deep=False) | _of(FunctionTest, "grader.tests."),
        ),
        (
            "`python_stdio`: run a program",
            _of(PythonStdioGrader, "grader.", deep=False) | _of(StdioTest, "grader.tests."),
        ),
        ("Limits", _of(Limits, "grader.limits.")),
        ("The run file", _of(RunConfig)),
        ("Files and data sets", _of(TaskSource, "tasks.")),
    ],
)
def test_a_table_has_every_field_and_its_default(heading: str, fields: dict[str, Any]) -> None:
    assert {row[0].strip("`"): _default(row[1]) for row in _rows(heading)} == fields


def test_the_arguments_for_a_model_of_ones_own_are_those_of_the_services() -> None:
    configs = {
        "orchestrator": OrchestratorConfig,
        "rollout_server": RolloutServerConfig,
        "trainer": TrainerConfig,
        "weight_bus": WeightBusConfig,
    }
    rows = _rows("Your own model")
    assert len(rows) > 5
    for applications, arguments, _ in rows:
        fields = {f for name in _names(applications) for f in configs[name].model_fields}
        assert set(_names(arguments)) <= fields


def _names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_verdicts_are_all_there() -> None:
    rewards = {row[0].strip("`"): row[1] for row in _rows("Verdicts")}
    assert set(rewards) == {str(verdict) for verdict in Verdict}
    assert [name for name, reward in rewards.items() if reward == "1"] == [Verdict.ACCEPTED]
    assert [name for name, reward in rewards.items() if reward == "none"] == [Verdict.INFRA_ERROR]
