"""`millrace env try` against a server that is another one's."""

import asyncio
import sys
from pathlib import Path

import pytest

from millrace_tools.audit.answers import always
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from services.protocol.router import SESSION_HEADER
from tests.audit.test_audit import ROWS, graded, run_file


class Anybody(ScriptedPolicy):
    """Answers calls without a session, too, and says which model was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict] = []

    def say(self, episode, messages):
        return "k1037" if "room 1?" in str(messages) else "no"

    async def _post(self, request):
        self.asked.append(await request.json())
        assert SESSION_HEADER not in request.headers, "it is ours alone"
        return await super()._post(request)


async def tried(folder: Path, url: str, *words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace_tools.main", "env", "try", str(folder / "run.yaml")),
        *("--url", url, "--model", "theirs", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    written, _ = await asyncio.wait_for(process.communicate(), 840)
    return process.returncode or 0, written.decode()


async def test_what_was_said_and_rewarded_is_shown(tmp_path: Path) -> None:
    run_file(tmp_path, "good", ROWS)
    async with Anybody() as server:
        status, said = await tried(tmp_path, server.url, "--tasks", "8")
    assert status == 0, said
    assert "  user: What is the code of room 1?\n  assistant: k1037\nreward 1 (1 calls" in said
    assert said.count("reward 0 (1 calls") == 7
    assert {body["model"] for body in server.asked} == {"theirs"}


async def test_a_task_with_a_grader_is_asked_once(tmp_path: Path) -> None:
    run_file(tmp_path, None, [graded(n, "exact", expected="k1037") for n in range(2)])
    async with Anybody() as server:
        status, said = await tried(tmp_path, server.url)
    assert (status, said.count("reward 1"), said.count("reward 0")) == (0, 1, 1), said


async def test_a_server_that_fails_is_named_and_no_reward(tmp_path: Path) -> None:
    run_file(tmp_path, "good", ROWS)
    async with ScriptedPolicy() as server:  # which knows no such episode
        server.begin(always(""))
        status, said = await tried(tmp_path, server.url, "--tasks", "1")
    assert status == 1
    assert "404" in said
    assert "no reward: environment_raised" in said


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://localhost:8000:"])
async def test_a_bad_url_is_named(tmp_path: Path, url: str) -> None:
    run_file(tmp_path, "good", ROWS)
    status, said = await tried(tmp_path, url)
    assert (status, said.startswith(f"error: --url: '{url}'")) == (2, True), said
