"""Every block of docs/rewards.md, run as it stands there."""

import asyncio
import contextlib
import io
import json
import re
import shlex
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio
import uvicorn
import yaml

from millrace_tools.grade.code_job import read_code_job
from services.protocol.reward.grader import JudgeGrader
from services.protocol.reward.reward_service import Verdict
from services.protocol.run.algorithm import AlgorithmConfig
from services.reward_service.config import RewardServiceConfig
from services.reward_service.http_api import http_api
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##+ |\Z)", PAGE, re.M | re.S))
FILES = dict(re.findall(r"`(\w+\.\w+)`[^\n]*:\n\n```\w+\n(.*?)```", PAGE, re.S))
GRADED = [line for line in PAGE.splitlines() if line.startswith("millrace grade")]
SERVICE = "http://127.0.0.1:8000"


def _blocks(section: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", SECTIONS[section], re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, under their names."""
    folder = tmp_path_factory.mktemp("guide")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scoring(folder: Path, new_scoring: Any) -> AsyncIterator[Scoring]:
    """A service with the grader of the page, which lies in a folder on the path."""
    (settings,) = _blocks("A grader of your own", "yaml")
    sys.path.insert(0, str(folder))
    scoring = await new_scoring("B", slots=1, **yaml.safe_load(settings))
    yield scoring
    await scoring.tools.aclose()
    sys.path.remove(str(folder))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(scoring: Scoring) -> AsyncIterator[str]:
    """The same over HTTP, on a port that is free."""
    config = uvicorn.Config(http_api(scoring), log_level="warning")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield "http://{}:{}".format(*listener.getsockname())
        server.should_exit = True
        await serving


async def test_the_page_has_the_blocks_that_are_run() -> None:
    assert len(GRADED) == 5
    assert set(FILES) == {
        *("sums.py", "sums.json", "sorting.yaml", "sorting.cpp"),
        *("any_divisor.yaml", "any_divisor.py", "my_graders.py"),
        *("named.json", "named.md"),
    }


@pytest.mark.parametrize("line", GRADED)
async def test_the_answers_of_the_page_are_right(scoring: Scoring, folder: Path, line: str) -> None:
    *given, _, tests = shlex.split(line)[2:]
    file = str(folder / given[0]) if given else None
    if file is not None and file.endswith(".cpp") and shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    (score,) = await scoring.score([read_code_job(file, str(folder / tests))])
    assert (score.verdict, score.reward) == (Verdict.ACCEPTED, 1.0), score.detail
    assert score.passed == score.total > 1


async def test_the_client_of_the_page_grades_a_batch(url: str) -> None:
    (program,) = _blocks("Many answers", "python")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        await asyncio.to_thread(exec, program.replace(SERVICE, url), names)
    assert names["scores"] == {"0": "accepted", "1": "wrong_answer", "2": "time_limit"}


async def test_the_grader_of_the_page_gives_its_reward(url: str) -> None:
    (command,) = _blocks("A grader of your own", "bash")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    shell = await asyncio.create_subprocess_exec(
        "bash", "-c", command.replace(SERVICE, url), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(shell.communicate(), 300)
    assert json.loads(said)["reward"] == 0.5


async def test_the_settings_of_the_page_are_ones() -> None:
    (judges,) = _blocks("A judge", "yaml")
    assert RewardServiceConfig.from_data(yaml.safe_load(judges), source="page").judges
    (judge,) = _blocks("A judge", "json")
    assert JudgeGrader.model_validate_json(judge).name == "tone"
    (weights,) = _blocks("Several named rewards", "yaml")
    algorithm = AlgorithmConfig.model_validate(yaml.safe_load(weights)["algorithm"])
    assert algorithm.decoupled == {"correct": 1.0, "format": 0.2}


async def test_the_environment_of_the_page_rewards_each_token() -> None:
    (program,) = _blocks("Rewards of tokens", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    entries = [mock.Mock(token=token) for token in ("4", "!", "<end>")]
    choice = mock.Mock(message=mock.Mock(content="4!"), logprobs=mock.Mock(content=entries))
    client = mock.MagicMock()
    client.chat.completions.create = mock.AsyncMock(return_value=mock.Mock(choices=[choice]))
    task = mock.Mock(data={"answer": "4"})
    assert await names["rollout"](client, task) == [[0.0, -0.1, 1.0]]


async def test_the_environment_of_the_page_rewards_each_call() -> None:
    (program,) = _blocks("Rewards of turns", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    client = mock.MagicMock()
    reply = mock.Mock(choices=[mock.Mock(message=mock.Mock(content="it is 4"))])
    client.chat.completions.create = mock.AsyncMock(return_value=reply)
    questions = [{"text": "2 + 2?", "answer": "4"}, {"text": "2 + 3?", "answer": "5"}]
    assert await names["rollout"](client, mock.Mock(data={"questions": questions})) == [1.0, 0.0]
