"""`millrace env try` against a server that is another one's."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from millrace_tools.audit.answers import always
from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from services.protocol.router import SESSION_HEADER
from tests.audit.test_audit import ROWS, ZOO, graded, run_file

GAME = """
import gymnasium
from gymnasium import spaces

class Guess(gymnasium.Env):
    observation_space, action_space = spaces.Text(20), spaces.Text(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "guess", {}

    def step(self, action):
        return "", float(action == "yes"), True, False, {}
"""


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


async def tried(environment: Path | str, url: str, *words: str) -> tuple[int, str]:
    """What `env try` says of this, or of a folder's run file."""
    name = environment / "run.yaml" if isinstance(environment, Path) else environment
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace_tools.main", "env", "try", str(name)),
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


async def test_an_environment_needs_no_run_file(tmp_path: Path) -> None:
    tasks = tmp_path / "rooms.jsonl"
    tasks.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    async with Anybody() as server:
        words = ("--task-file", str(tasks), "--tasks", "8")
        for name in (f"{ZOO}:good", "tests.audit.zoo:good"):
            status, said = await tried(name, server.url, *words)
            assert (status, said.count("reward 1"), said.count("reward 0")) == (0, 1, 7), said
    assert {body["model"] for body in server.asked} == {"theirs"}


async def test_an_environment_of_gymnasium_needs_its_class_alone(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "game.py").write_text(GAME)
    async with Anybody() as server:
        status, said = await tried(f"{tmp_path}/game.py:Guess", server.url, "--prompt", "A game.")
    assert status == 0, said
    assert said.count("system: A game.\n  user: guess\n  assistant: no\n") == 3
    assert said.count("reward 0 (") == 3


@pytest.mark.parametrize("name", ["tests.audit.no_such:good", "no spaces please"])
async def test_what_is_no_environment_is_named(name: str) -> None:
    status, said = await tried(name, "http://127.0.0.1:1")
    assert (status, said.startswith(f"error: ENV: '{name}'")) == (2, True), said


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
