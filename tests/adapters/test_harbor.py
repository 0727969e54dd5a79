"""Tasks of Harbor in real workspaces; where the package is installed, its own reading of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import yaml
from openai.types.chat import ChatCompletionMessage

from environments.harbor import harbor_rollout, known_answers, task_row
from environments.harbor_task import IMAGES, HarborTask
from services.orchestrator.rollout.sandbox import sandboxes_at
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from services.workspaces.client import WorkspaceFailed
from tests.audit.test_audit import audit_of
from tests.reward_service.workspace_api.conftest import Replica, cluster

CANARY = "<!-- harbor-canary GUID 26b5c67b -->\n\n"
CONFIG = """
schema_version = "1.4"
[agent]
timeout_sec = 300.0
[verifier]
timeout_sec = 120.0
env = { EXPECTED = "6" }
[environment]
network_mode = "no-network"
memory_mb = 256
env = { UNIT = "apples" }
[solution]
env = { HOW = "awk" }
"""
DOCKERFILE = """# harbor-canary GUID 26b5c67b
FROM python:3.12-slim
WORKDIR /app
ENV COLOUR=red
COPY data/ \\
     /app/data
COPY note.txt .
CMD ["bash"]
"""
TESTS = """#!/bin/bash
if python3 /tests/sum_is_right.py; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
CHECK = """
import os
assert os.getcwd() in ("/app", "/work/app"), os.getcwd()
text = open("/app/sum.txt").read()
assert text.split() == [os.environ["EXPECTED"], os.environ["UNIT"], os.environ["COLOUR"]], text
"""
SOLVE = """#!/bin/bash
$HOW -f "$(dirname "$0")/sum.awk" data/numbers.txt > sum.txt
"""
SUM = '{ n += $1 } END { print n, ENVIRON["UNIT"], ENVIRON["COLOUR"] }'
RIGHT = (
    'echo "$(($(paste -sd+ data/numbers.txt)))" "$UNIT" $COLOUR > /app/sum.txt; ls; cat note.txt'
)
Play = Callable[..., Any]


def harbor_task(folder: Path, **files: str) -> Path:
    """A folder with one task, `sum`; files that are given replace its own."""
    own = {
        "task.toml": CONFIG,
        "instruction.md": f"{CANARY}Add up /app/data/numbers.txt into /app/sum.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/numbers.txt": "1\n2\n3\n",
        "environment/note.txt": "be kind\n",
        "tests/test.sh": TESTS,
        "tests/sum_is_right.py": CHECK,
        "solution/solve.sh": SOLVE,
        "solution/sum.awk": SUM,
    }
    for name, text in (own | files).items():
        path = folder / "sum" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


class Model:
    """Says these answers in turn; one that is a dictionary calls bash with it."""

    def __init__(self, *said: str | dict[str, str]) -> None:
        self._said, self.heard, self.offered = list(said), list[Any](), Any
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[Any], tools: Any = None, **_: object) -> Any:
        self.heard, self.offered = list(messages), tools
        said = self._said.pop(0)
        fields: dict[str, Any] = {"role": "assistant", "content": said}
        if isinstance(said, dict):
            function = {"name": "bash", "arguments": json.dumps(said)}
            call = {"id": "c", "type": "function", "function": function}
            fields |= {"content": None, "tool_calls": [call]}
        message = ChatCompletionMessage.model_validate(fields)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica() -> AsyncIterator[Replica]:
    async with cluster() as made:
        try:
            yield await made.start(use_bubblewrap=True, require_tier="A")
        except InvalidInput as problem:
            pytest.skip(f"tier A is not to be had here: {problem}")


@pytest.fixture
def play(replica: Replica) -> Play:
    """Plays the task of a folder with a model."""

    async def play(folder: Path, model: Model, **how: Any) -> Any:
        row = task_row(HarborTask.read(folder / "sum"), heldout=False)
        with sandboxes_at(replica.http, "http://x", timeout_s=60):
            rollout = harbor_rollout(folder, processes=32, **how)
            return await rollout(model, Task.from_data(row, source="row"))  # type: ignore[arg-type]

    return play


@pytest.mark.asyncio(loop_scope="module")
async def test_a_model_that_uses_the_tool_solves_the_task(tmp_path: Path, play: Play) -> None:
    model = Model({"command": RIGHT}, {"cmd": "x"}, "Done.")
    assert await play(harbor_task(tmp_path), model) == 1.0
    assert [tool["function"]["name"] for tool in model.offered] == ["bash"]
    first, ran, wrong = model.heard[1], model.heard[3], model.heard[5]
    assert first == {"role": "user", "content": "Add up /app/data/numbers.txt into /app/sum.txt.\n"}
    assert "data\nnote.txt\nsum.txt\nbe kind" in ran["content"]
    assert "error" in wrong["content"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_model_that_writes_blocks_solves_the_task_and_a_wrong_one_earns_nothing(
    tmp_path: Path, play: Play
) -> None:
    folder = harbor_task(tmp_path)
    model = Model(f"First:\n```bash\n{RIGHT}\n```", "Done.")
    assert await play(folder, model, tools=False) == 1.0
    assert model.offered is None
    assert await play(folder, Model("I do not know.")) == 0.0


@pytest.mark.asyncio(loop_scope="module")
async def test_the_reference_solution_is_a_good_answer(tmp_path: Path, play: Play) -> None:
    folder = harbor_task(tmp_path)
    known = known_answers(HarborTask.read(folder / "sum"))
    assert known["task_id"] == "sum"
    ((solves, done),) = known["good"]
    assert await play(folder, Model(solves, done)) == 1.0
    assert await play(folder, Model(*known["bad"])) == 0.0


@pytest.mark.asyncio(loop_scope="module")
async def test_the_model_neither_sees_the_tests_nor_keeps_what_it_planted_in_their_place(
    tmp_path: Path, play: Play
) -> None:
    plants = """find / -name sum_is_right.py 2> /dev/null; ls -A /tests /logs/verifier
        echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
        echo 'import os; os._exit(0)' > /tests/os.py
        mkdir -p /logs/verifier/reward.json /work/.harbor.tar
        chmod 0 /tests/test.sh /work/.harbor.tar
        rm -rf /work/logs; ln -s /work/tests /work/logs; mkdir /work/tests/verifier
        echo 1 > /logs/verifier/reward.txt; chmod 0 /work/tests; mv /work/app /work/gone"""
    model = Model({"command": plants}, "Done.")
    assert await play(harbor_task(tmp_path), model) == 0.0
    assert "sum_is_right.py" not in model.heard[3]["content"]
    assert model.heard[3]["content"].startswith("/logs/verifier:\n\n/tests:")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("echo 7 is not 6; exit 1", "the tests wrote no reward .*7 is not 6"),
        ("sleep 60", "the tests took longer than 1 s"),
        ("echo nan > /logs/verifier/reward.txt", "reward.txt: nan is no reward"),
        ("touch /logs/verifier/reward.txt", "reward.txt: could not convert"),
        ('echo \'{"a": "1"}\' > /logs/verifier/reward.json', "reward.json: "),
        ("echo '{}' > /logs/verifier/reward.json", "reward.json: .* no rewards by name"),
    ],
)
async def test_tests_that_come_to_no_reward_fail_the_episode_by_a_name(
    tmp_path: Path, play: Play, tests: str, why: str
) -> None:
    soon = CONFIG.replace("120.0", "1.0") if "sleep" in tests else CONFIG
    files = {"tests/test.sh": f"#!/bin/bash\n{tests}\n", "task.toml": soon}
    folder = harbor_task(tmp_path, **files)
    with pytest.raises(WorkspaceFailed, match=why) as failed:
        await play(folder, Model("Done."))
    assert failed.value.reason == "workspace_ungraded"


@pytest.mark.asyncio(loop_scope="module")
async def test_named_rewards_stay_named(tmp_path: Path, play: Play) -> None:
    for text, reward in (
        ('{"right": 1, "tidy": 0.5}', {"right": 1.0, "tidy": 0.5}),
        ('{"reward": 0.25}', 0.25),
    ):
        tests = f"#!/bin/bash\necho '{text}' > /logs/verifier/reward.json\n"
        assert (
            await play(harbor_task(tmp_path, **{"tests/test.sh": tests}), Model("Done.")) == reward
        )


@pytest.mark.asyncio(loop_scope="module")
async def test_a_task_whose_files_changed_is_not_played(tmp_path: Path, play: Play) -> None:
    row = task_row(HarborTask.read(harbor_task(tmp_path) / "sum"), heldout=False)
    harbor_task(tmp_path, **{"tests/sum_is_right.py": "pass"})
    with pytest.raises(InvalidInput, match="write the task file anew"):
        await harbor_rollout(tmp_path)(Model(), Task.from_data(row, source="row"))  # type: ignore[arg-type]


def toml(old: str, new: str) -> dict[str, str]:
    assert old in CONFIG
    return {"task.toml": CONFIG.replace(old, new)}


def image(more: str, old: str = "CMD") -> dict[str, str]:
    return {"environment/Dockerfile": DOCKERFILE.replace(old, f"{more}\n{old}", 1)}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (image("RUN pip install numpy"), "Dockerfile: 'RUN pip install numpy'"),
        (image("COPY --from=ghcr.io/astral-sh/uv /uv /bin/"), "Dockerfile: 'COPY --from"),
        (image("COPY note.txt /etc/motd"), "COPY: '/etc'"),
        (image("COPY note.txt /note.txt"), "COPY: '/'"),
        (image("COPY ../tests/sum_is_right.py ."), "'COPY ../tests/sum_is_right.py'"),
        (image("FROM pytorch/pytorch:2.4"), "Dockerfile: 'FROM pytorch"),
        ({"environment/Dockerfile": "FROM ubuntu"}, "workdir: '/'"),
        ({"environment/docker-compose.yaml": ""}, "docker-compose.yaml"),
        ({"tests/.harborignore": "x"}, ".harborignore"),
        (toml("memory_mb = 256", "gpus = 1"), r"\[environment\] gpus: 1"),
        (toml("memory_mb = 256", 'docker_image = "x"'), r"\[environment\] docker_image: 'x'"),
        (toml("memory_mb = 256", 'os = "windows"'), r"\[environment\] os: 'windows'"),
        (toml("memory_mb = 256", "surprise = 1"), r"\[environment\] surprise: 1"),
        (toml("[agent]", "[[steps]]\nname = 'one'\n[agent]"), "steps"),
        (toml("[agent]", "[agent]\nuser = 'me'"), r"\[agent\] user: 'me'"),
        (toml("[verifier]", '[verifier]\nenvironment_mode = "separate"'), "environment_mode"),
        (toml('"6"', '"${KEY}"'), r"\[verifier\] env.EXPECTED"),
        (toml('network_mode = "no-network"', ""), "network_mode: 'public'.*--offline"),
        ({"tests/test.sh": "# curl\nset -e; uvx pytest /tests"}, "tests/test.sh: 'uvx'"),
        (toml("120.0", "7200"), "timeout_sec: 7200"),
        (toml("memory_mb = 256", 'mcp_servers = [{ name = "m", url = "x" }]'), "mcp_servers"),
    ],
)
def test_a_task_that_needs_more_than_a_workspace_is_refused_by_name(
    tmp_path: Path, files: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidInput, match=f"sum: .*{named}"):
        HarborTask.read(harbor_task(tmp_path, **files) / "sum", images=IMAGES, offline=False)


def test_the_command_writes_a_task_file_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    for number in range(3):
        harbor_task(tmp_path / "made", **toml("memory_mb = 256", f"memory_mb = {256 + number}"))
        (tmp_path / "made" / "sum").rename(tmp_path / "made" / f"sum-{number}")
    harbor_task(tmp_path / "made", **toml("memory_mb = 256", "gpus = 1"))
    out, answers = tmp_path / "tasks.jsonl", tmp_path / "answers.jsonl"
    command = [sys.executable, "-m", "environments.harbor", str(tmp_path / "made"), str(out)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "sum: [environment] gpus: 1" in refused.stderr
    assert not out.exists()
    command += ["--skip-unfit", "--heldout", "1", "--answers", str(answers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 of 4 tasks cannot be played" in done.stderr
    rows = [Task.model_validate_json(line) for line in out.read_text().splitlines()]
    assert sorted(row.task_id for row in rows) == ["sum-0", "sum-1", "sum-2"]
    assert [row.split for row in rows].count("heldout") == 1
    assert "sum_is_right.py" not in out.read_text()
    assert len(answers.read_text().splitlines()) == 3


def test_the_command_names_a_folder_without_tasks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "environments.harbor", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"folder: {str(tmp_path)!r} is not usable. It has no FOLDER/task.toml.\n"


@pytest.mark.slow
@pytest.mark.usefixtures("replica")
def test_an_audit_pays_reference_solutions_and_nothing_else(tmp_path: Path) -> None:
    harbor_task(tmp_path / "made")
    shutil.copytree(tmp_path / "made" / "sum", tmp_path / "made" / "other")
    tasks, answers = tmp_path / "tasks.jsonl", tmp_path / "answers.jsonl"
    command = [sys.executable, "-m", "environments.harbor", str(tmp_path / "made"), str(tasks)]
    subprocess.run([*command, "--answers", str(answers)], check=True)
    (tmp_path / "environment.py").write_text(
        "from environments.harbor import harbor_rollout\n"
        f"rollout = harbor_rollout({str(tmp_path / 'made')!r}, max_turns=3)\n"
    )
    run = {"name": "made", "model": "m", "task_file": "tasks.jsonl", "steps": 1}
    run |= {"batch_groups": 1, "group_size": 2, "environment": "environment.py:rollout"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    only = ["reward.good", "reward.bad"]
    status, found, said = audit_of(tmp_path, answers=answers, only=only, tasks=1)
    assert status == 0, said
    assert {one["verdict"] for one in found.values()} == {"pass"}, said


def harbors(folder: Path) -> Any:
    """The task as the package of Harbor reads it; skips the test where there is none."""
    pytest.importorskip("harbor")
    return import_module("harbor.models.task.task").Task(folder)


def test_the_package_of_harbor_reads_the_same_task(tmp_path: Path) -> None:
    folder = harbor_task(tmp_path) / "sum"
    theirs, ours = harbors(folder), HarborTask.read(folder)
    assert ours.instruction == theirs.instruction
    assert ours.agent_s == theirs.config.agent.timeout_sec
    assert ours.verifier_s == theirs.config.verifier.timeout_sec
    assert ours.verifier_env == theirs.config.verifier.env
    assert ours.solution_env == theirs.config.solution.env
    assert ours.memory_mb == theirs.config.environment.memory_mb


def test_a_task_that_the_package_of_harbor_begins_is_read(tmp_path: Path) -> None:
    pytest.importorskip("harbor")
    harbor = [str(Path(sys.executable).parent / "harbor"), "task", "init", "me/begun"]
    template = tmp_path / "template.toml"
    template.write_text('[verifier]\nenvironment_mode = "shared"\n')
    how = ["--metadata-template", str(template), "--include-canary-strings"]
    subprocess.run([*harbor, "-p", str(tmp_path), *how], check=True, capture_output=True)
    folder = tmp_path / "begun"
    (folder / "instruction.md").write_text((folder / "instruction.md").read_text() + "Say hello.")
    with pytest.raises(InvalidInput, match=r"begun: tests/test\.sh: 'apt-get'"):
        HarborTask.read(folder, images=IMAGES)
    (folder / "tests" / "test.sh").write_text("# without curl\necho 1 > /logs/verifier/reward.txt")
    ours, theirs = HarborTask.read(folder, images=IMAGES), harbors(folder)
    assert (ours.instruction, ours.workdir) == (theirs.instruction, "/app")
    assert (ours.agent_s, ours.verifier_s) == (600.0, theirs.config.verifier.timeout_sec)
