"""Tasks that `millrace audit` plays through the user's own code."""

from pathlib import Path

import pytest
import yaml

from millrace_tools.audit.answers import always
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.audit.subject import Subject, audited_tasks
from millrace_tools.deploy.run_file import read_run_file
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring
from tests.audit.test_audit import ROWS, run_file

SLOW_TO_IMPORT = """
import time

time.sleep(4)

async def rollout(client, task):
    return 1.0
"""


@pytest.fixture
def slow_to_import(tmp_path: Path) -> Path:
    (tmp_path / "environment.py").write_text(SLOW_TO_IMPORT)
    run_file(tmp_path, None, ROWS)
    written = tmp_path / "run.yaml"
    run = yaml.safe_load(written.read_text())
    written.write_text(yaml.safe_dump(run | {"environment": "environment.py:rollout"}))
    return written


async def test_an_import_takes_none_of_an_episodes_time(slow_to_import: Path) -> None:
    run = read_run_file(slow_to_import)
    (task,) = audited_tasks(run, 1, agent=False)
    async with (
        ScriptedPolicy() as policy,
        Subject(run, policy, Scoring(RewardServiceConfig()), at_once=1, timeout_s=3) as subject,
    ):
        outcome = await subject.play(task, always("k1"))
    assert (outcome.reward, outcome.reason) == (1.0, "")
    assert outcome.seconds < 3
