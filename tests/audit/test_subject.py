"""Tasks that `millrace audit` plays through the user's own code."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from millrace_tools.audit.answers import always
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.audit.subject import Subject, audited_tasks
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring
from tests.audit.test_audit import ROWS, run_file

BROKEN = "async def rollout(client, task): ...\n\nnothing_of_this_name"
SLOW_TO_IMPORT = """
import time

time.sleep(4)

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
