"""`millrace audit ENV` without a run file."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from millrace_tools.audit.named import run_file_of
from millrace_tools.deploy.run_file import read_run_file
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from tests.adapters.test_harbor import harbor_task
from tests.audit.test_audit import ROWS, ZOO

GAME = """
import gymnasium
from gymnasium import spaces

class Guess(gymnasium.Env):
    observation_space, action_space = spaces.Text(20), spaces.Discrete(9)

rollout = print
"""


def options(folder: Path, environment: str, **given: str) -> Namespace:
    names = ("task_file", "arguments", "act", "agent", "model")
    return Namespace(
        **dict.fromkeys(names)
        | {"environment": environment, "prompt": "Act.", "out": folder}
        | given
    )


def made(folder: Path, environment: str, **given: str) -> tuple[str | None, int, str]:
    """What a run plays by the file that is written, its tasks, and the written environment."""
    run = read_run_file(run_file_of(options(folder, environment, **given)))
    written = folder / "subject" / "environment.py"
    text = written.read_text() if written.exists() else ""
    return run.environment, len(TaskTable(run)), text


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "rooms.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    return path


def test_a_run_file_is_itself(tmp_path: Path) -> None:
    assert run_file_of(options(tmp_path, "some/run.yaml")) == "some/run.yaml"
    with pytest.raises(InvalidInput, match="--task-file"):
        run_file_of(options(tmp_path, "some/run.yaml", task_file="tasks.jsonl"))


def test_a_rollout_function_plays_a_task_file(tmp_path: Path, tasks: Path) -> None:
    environment, count, _ = made(tmp_path, f"{ZOO}:good", task_file=str(tasks))
    assert (environment, count) == (f"{ZOO}:good", len(ROWS))
    with pytest.raises(InvalidInput, match="--task-file"):
        made(tmp_path, f"{ZOO}:good")


def test_a_module_is_found_where_python_looks_and_not_imported(
    tmp_path: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "play.py").write_text("raise RuntimeError\n" + GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment, _, text = made(tmp_path, "mine.play:rollout", task_file=str(tasks))
    assert environment == f"{tmp_path}/subject/environment.py:rollout"
    lines = f"sys.path.insert(0, {str(tmp_path)!r})\nfrom mine.play import rollout as rollout\n"
    assert text.endswith(lines)
    _, count, text = made(tmp_path, "mine.play:Guess")
    assert (count, "entry_point='mine.play:Guess'" in text) == (72, True)
    with pytest.raises(InvalidInput, match=r"no module mine\.other"):
        made(tmp_path, "mine.other:Guess")


def test_tasks_alone_have_graders_or_an_agent(tmp_path: Path, tasks: Path) -> None:
    tasks.write_text(
        tasks.read_text().replace('"data"', '"grader": {"kind": "exact", "expected": "x"}, "data"')
    )
    assert made(tmp_path, str(tasks))[:2] == (None, len(ROWS))
    assert made(tmp_path, str(tasks), agent="true")[:2] == ("external", len(ROWS))


def test_a_class_is_an_environment_of_gymnasium(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME)
    _, count, text = made(tmp_path, f"{tmp_path}/game.py:Guess", arguments='{"size": 5}')
    assert count == 72
    assert "entry_point='game:Guess'" in text
    assert "gymnasium_rollout('audited/Guess-v0', size=5)" in text
    compile(text, "environment.py", "exec")


def test_an_id_of_gymnasium(tmp_path: Path) -> None:
    _, count, text = made(tmp_path, "my_package:Maze-v0")
    assert (count, "gymnasium_rollout('my_package:Maze-v0')" in text) == (72, True)


@pytest.mark.parametrize(("act", "kind"), [("number:int", "int"), ("message", "str"), ("x:y", "")])
def test_an_openenv_server_needs_a_field_of_its_action(tmp_path: Path, act: str, kind: str) -> None:
    if not kind:
        with pytest.raises(InvalidInput, match="--act"):
            made(tmp_path, "http://127.0.0.1:1", act=act)
        return
    _, _, text = made(tmp_path, "http://127.0.0.1:1", act=act)
    field = act.partition(":")[0]
    assert f"openenv_rollout(['http://127.0.0.1:1'], act={{'{field}': {kind}}})" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [("no spaces please", "Name a run file"), ("some-environment", "verifiers says")],
)
def test_what_is_unknown_is_said(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        made(tmp_path, name)


@pytest.mark.parametrize("text", ["[1]", "{", '"x"'])
def test_arguments_are_an_object(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="--arguments"):
        made(tmp_path, "Maze-v0", arguments=text)


def test_a_folder_of_harbors_tasks_is_written_and_played(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path / "tasks")
    shutil.copytree(folder / "sum", folder / "other")
    environment, count, text = made(tmp_path / "report", str(folder))
    assert environment is not None
    assert environment.endswith("environment.py:rollout")
    assert count == 2
    assert f"rollout = harbor_rollout({str(folder)!r})" in text
    harbor_task(folder, **{"environment/Dockerfile": "FROM scratch"})
    with pytest.raises(InvalidInput, match=r"sum: environment/Dockerfile: .*FROM scratch"):
        made(tmp_path / "report", str(folder))
