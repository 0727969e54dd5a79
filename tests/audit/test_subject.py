"""Tasks that `millrace audit` plays through the user's own code."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.tiny_code.make_model import write_demonstrations, write_tasks
from millrace_tools.audit.answers import always
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.audit.subject import Subject, audited_tasks
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring
from tests.audit.test_audit import ROWS, ZOO, graded, row, run_file

WARM_UP = Path(__file__).parents[2] / "examples" / "tiny_code" / "warm_up.yaml"
BROKEN = "async def rollout(client, task): ...\n\nnothing_of_this_name"
SLOW_TO_IMPORT = """
import time

time.sleep(4)

async def rollout(client, task):
    return 1.0
"""

WAITS_AT_ITS_IMPORT = """
with open("{pipe}") as pipe:
    pipe.readline()

async def rollout(client, task):
    return 1.0
"""


def run_of(folder: Path, environment: str) -> RunConfig:
    (folder / "environment.py").write_text(environment)
    run_file(folder, None, ROWS)
    written = folder / "run.yaml"
    run = yaml.safe_load(written.read_text())
    written.write_text(yaml.safe_dump(run | {"environment": "environment.py:rollout"}))
    return read_run_file(written)


@asynccontextmanager
async def subject_of(run: RunConfig) -> AsyncIterator[Subject]:
    scoring = Scoring(RewardServiceConfig())
    async with (
        ScriptedPolicy() as policy,
        Subject(run, policy, scoring, at_once=2, timeout_s=3) as subject,
    ):
        yield subject


async def test_an_import_takes_none_of_an_episodes_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, SLOW_TO_IMPORT)
    (task,) = audited_tasks(run, 1, agent=False)
    async with subject_of(run) as subject:
        outcome = await subject.play(task, always("k1"))
    assert (outcome.reward, outcome.reason) == (1.0, "")
    assert outcome.seconds < 3


async def test_an_environment_that_cannot_be_imported_leaves_no_episode_open(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, BROKEN)
    tasks = audited_tasks(run, 4, agent=False)
    async with subject_of(run) as subject:
        with pytest.raises(InvalidInput, match="'nothing_of_this_name' is not defined"):
            await subject.play_all(tasks, [None] * len(tasks))
        assert "play" not in {task.get_coro().__name__ for task in asyncio.all_tasks()}


async def test_an_environment_that_is_being_imported_is_no_process_yet(tmp_path: Path) -> None:
    """Signals go to these numbers, and 0 stands for the audit's own process group."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "slow.py").write_text(WAITS_AT_ITS_IMPORT.format(pipe=pipe))
    run_file(tmp_path, None, [])
    run = yaml.safe_load((tmp_path / "run.yaml").read_text())
    del run["task_file"]
    run["tasks"] = []
    for number, environment in enumerate(["slow.py:rollout", f"{ZOO}:good"]):
        rows = [row(2 * number), row(2 * number + 1)]
        text = "".join(json.dumps(one) + "\n" for one in rows)
        (tmp_path / f"{number}.jsonl").write_text(text)
        run["tasks"].append({"file": f"{number}.jsonl", "environment": environment})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    read = read_run_file(tmp_path / "run.yaml")
    slow, _, quick, _ = audited_tasks(read, 4, agent=False)
    held = os.open(pipe, os.O_RDWR)
    during: list[list[int]] = []

    async with subject_of(read) as subject:

        def answer(messages: Sequence[dict[str, Any]]) -> str:
            during.append(subject.processes())
            os.write(held, b"go on\n")
            return "no"

        outcomes = await subject.play_all([slow, quick], [always(""), answer])
        assert len(subject.processes()) == 2
        assert len(during) == 1
        assert len(during[0]) == 1
        assert set(during[0]) < set(subject.processes())
    os.close(held)
    assert [one.reward for one in outcomes] == [1.0, 0.0], outcomes


def test_tasks_are_spread_evenly_over_all_there_are(tmp_path: Path) -> None:
    run_file(tmp_path, None, [graded(n, "exact", expected="x") for n in range(31)])
    run = read_run_file(tmp_path / "run.yaml")

    def taken(count: int) -> list[int]:
        found = audited_tasks(run, count, agent=False)
        return [int(task.task_id.removeprefix("room-")) for task in found]

    assert taken(16) == [0, *range(1, 30, 2)]
    assert taken(3) == [0, 10, 20]
    assert taken(40) == list(range(31))


def test_given_answers_are_not_played(tmp_path: Path) -> None:
    shutil.copy(WARM_UP, tmp_path / "run.yaml")
    write_tasks(tmp_path / "tasks.jsonl")
    write_demonstrations(tmp_path / "demonstrations.jsonl", seed=0)
    run = read_run_file(tmp_path / "run.yaml")
    found = audited_tasks(run, 10_000, agent=False)
    assert len(found) == len((tmp_path / "tasks.jsonl").read_text().splitlines())
    assert {task.environment for task in found} == {None}
