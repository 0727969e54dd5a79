"""`millrace init`: what it writes runs as it is."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from millrace_tools.capacity.machine import free_port
from millrace_tools.demo import demo
from millrace_tools.demo import init as init_command
from millrace_tools.demo.demo import DemoOptions, resolved
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.main import main
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.reward.grader import PythonGrader
from services.protocol.yaml_text import load_yaml
from tests.guides.blocks import SHELL, Block
from tests.guides.shell import check_command

FILES = {"tasks.jsonl", "grader.py", "run.yaml", "deploy.yaml", "README.md"}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `millrace init --task mine` writes, below the current one."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--task", "mine"]) == 0
    return tmp_path / "mine"


def test_a_task_is_five_files(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {path.name for path in mine.iterdir()} == FILES
    (mine / "run.yaml").write_text("mine\n")
    (mine / "grader.py").unlink()
    assert main(["init", "--task", "mine"]) == 0
    assert "1 files written to mine" in capsys.readouterr().out
    assert (mine / "run.yaml").read_text() == "mine\n"
    for path in mine.iterdir():
        assert "task_name" not in path.read_text()
        assert "task_folder" not in path.read_text()


def test_the_next_command_is_one_that_this_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "millrace"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    for path, typed in ((str(program.parent), "millrace"), ("/nowhere", "bin/millrace")):
        monkeypatch.setenv("PATH", path)
        assert main(["init", "--task", "mine"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"  {typed} demo mine"


def test_its_run_file_its_tasks_and_its_deployment_fit_together(mine: Path) -> None:
    run = read_run_file(mine / "run.yaml")
    tasks = TaskTable(run)
    assert len(tasks.train) >= run.batch_groups
    assert len(tasks.heldout) > 5
    assert not {tasks[one].messages[-1].content for one in tasks.train} & {
        tasks[one].messages[-1].content for one in tasks.heldout
    }
    services = {one["name"]: one for one in load_yaml(mine / "deploy.yaml")["applications"]}
    assert services["rollout_server"]["args"]["served_model_name"] == run.model
    assert services["trainer"]["args"]["model"] == str(init_command.demo_model(seed=0))


def test_its_deployment_is_a_good_one(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"head_dim": 32, "num_hidden_layers": 2}')
    (tmp_path / "tokenizer.json").write_text("{}")
    text = (mine / "deploy.yaml").read_text()
    model = str(init_command.demo_model(seed=0))
    (mine / "deploy.yaml").write_text(text.replace(model, str(tmp_path)))
    assert "reward_service" in Deployment.read(mine / "deploy.yaml").names


def test_its_grader_accepts_what_each_task_expects(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    asked = ["--deployment", "mine/deploy.yaml", "--task-file", "mine/tasks.jsonl"]
    row = json.loads((mine / "tasks.jsonl").read_text().splitlines()[0])
    right = row["grader"]["arguments"]["expected"]
    scope = {"a": 5, "b": 11, "c": 17}
    value = eval(right.removeprefix("return "), scope)
    words = row["messages"][0]["content"].replace(",", ")")
    for word, sign in (("plus", "+"), ("minus", "-"), ("times", "*")):
        words = words.replace(word, sign)
    assert value == eval(f"({words}", scope)
    assert main(["grade", right, *asked, "--task", row["task_id"]]) == 0
    assert main(["grade", "return a", *asked, "--task", row["task_id"]]) == 1
    rewards = [json.loads(line)["reward"] for line in capsys.readouterr().out.splitlines()[-2:]]
    assert rewards == [1.0, 0.0]


def test_every_task_names_the_grader_of_its_folder(mine: Path) -> None:
    tasks = TaskTable(read_run_file(mine / "run.yaml"))
    graders = [task.grader for task in tasks.values()]
    assert {grader.name for grader in graders if isinstance(grader, PythonGrader)} == {"mine"}
    assert '@grader("mine")' in (mine / "grader.py").read_text()


def test_the_commands_of_its_readme_are_ones_that_their_programs_accept(mine: Path) -> None:
    text = (mine / "README.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.S)
    assert {language for language, _ in blocks} <= set(SHELL)
    for language, block in blocks:
        for words in Block(page="README.md", line=0, language=language, text=block).commands:
            check_command(words)
    (line,) = (line for line in text.splitlines() if line.startswith("millrace grade"))
    words = shlex.split(line)
    task = next(
        row
        for row in map(json.loads, (mine / "tasks.jsonl").read_text().splitlines())
        if row["task_id"] == words[words.index("--task") + 1]
    )
    assert task["grader"]["arguments"]["expected"] == words[-1]


@pytest.mark.parametrize("name", ["Mine", "my task", "", "x" * 41, "../up"])
def test_a_name_that_no_run_can_have_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--task", name]) == 2
    assert f"error: --task: {name!r} -> Give up to 40 of" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_demo_of_a_folder_keeps_its_deployment_but_for_the_ports(mine: Path) -> None:
    options = DemoOptions(seed=0, port=8123, steps=None, folder=mine)
    before = load_yaml(options.deploy_file)
    after = resolved(before, options)
    changed = {
        name
        for one, other in zip(before["applications"], after["applications"], strict=True)
        for name in [one["name"]]
        if one != other
    }
    assert changed == {"router", "orchestrator"}
    assert options.read_run().name == "mine"


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("run.yaml", "steps: 20", "stepz: 20", "the nearest is steps"),
        ("tasks.jsonl", '"split": "heldout"', '"split": "test"', "'train' or 'heldout'"),
        ("run.yaml", "batch_groups: 8", "batch_groups: 99", "41 tasks to learn from"),
        ("deploy.yaml", "- name: router", "- name: rooter", "ask `millrace check"),
        ("deploy.yaml", "applications:", "task_file:", "This is a run file"),
    ],
)
def test_a_mistake_in_a_folder_is_found_before_anything_starts(
    mine: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    before: str,
    after: str,
    said: str,
) -> None:
    text = (mine / file).read_text()
    assert before in text
    (mine / file).write_text(text.replace(before, after))
    assert main(["demo", "mine", "--port", str(free_port())]) == 2
    assert said in capsys.readouterr().err


def test_a_demo_makes_the_examples_model_and_no_other(mine: Path) -> None:
    options = DemoOptions(seed=0, port=8123, steps=None, folder=mine)
    content = load_yaml(options.deploy_file)
    for one in content["applications"]:
        if one["name"] == "rollout_server":
            one["args"]["model"] = "hf://owner/name"
    with demo._model(content, options) as maker:
        assert maker is None


def test_operators_get_the_dashboards_without_what_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "ops")]) == 0
    grafana = tmp_path / "ops" / "deploy" / "grafana"
    assert {path.name for path in grafana.iterdir()} == {"dashboards", "provisioning"}
    assert list((grafana / "dashboards").glob("*.json"))
    assert (tmp_path / "ops" / "deploy" / "cluster.yaml").exists()
    assert (tmp_path / "ops" / "examples" / "tiny_code" / "run.yaml").exists()
    for path in (tmp_path / "ops" / "deploy").glob("*.yaml"):
        assert yaml.safe_load(path.read_text())["applications"]
