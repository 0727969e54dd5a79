"""Audits of environments that others have made, by their adapters: good ones, and planted ones."""

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from environments import gymnasium as gymnasium_adapter
from environments import verifiers as verifiers_adapter
from tests.adapters import test_verifiers
from tests.audit.test_audit import ROWS, audit_of

pytestmark = pytest.mark.slow

ONLY = [
    *("reward.worthless", "reward.reproducible", "reward.failure"),
    *("reward.network", "reward.programs", "operations.faults"),
]
PLANTED = ["reward.worthless"]
"""The one that finds what `planted` environments pay for."""

GYMNASIUM = """
import gymnasium
from gymnasium import spaces
from environments.gymnasium import gymnasium_rollout

class Guess(gymnasium.Env):
    observation_space = spaces.Text(20)
    action_space = spaces.Discrete(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1000))
        return "guess a number below a thousand", {}

    def step(self, action):
        return "", float(action == self.number), True, False, {}

gymnasium.register("audited/Guess-v0", entry_point=Guess)

class Planted(Guess):
    def step(self, action):
        return "", float(action in (self.number, -1)), True, False, {}

gymnasium.register("audited/Planted-v0", entry_point=Planted)
good = gymnasium_rollout("audited/Guess-v0", max_turns=2)
planted = gymnasium_rollout(
    "audited/Planted-v0", read=lambda said: int(said) if said.isdecimal() else -1,
    disable_env_checker=True,  # which would refuse -1
)
"""

MCP_SERVER = """
from mcp.server import MCPServer

server = MCPServer("rooms")

@server.tool()
def code(room: int) -> str:
    return f"k{1000 + 37 * room}"

server.run("stdio")
"""

MCP = """
import sys
from pathlib import Path
from environments.mcp import mcp_tools

SERVER = [sys.executable, str(Path(__file__).with_name("server.py"))]

async def said(client, task):
    messages = task.chat
    async with mcp_tools(SERVER) as box:
        for _ in range(3):
            reply = await client.chat.completions.create(
                model="policy", messages=messages, tools=box.tools
            )
            messages += await box.call(reply)
            if not reply.choices[0].message.tool_calls:
                return reply.choices[0].message.content or ""
    return ""

async def good(client, task):
    return float(await said(client, task) == task.data["answer"])

async def planted(client, task):  # it pays for not having used a tool in vain
    return float(await said(client, task) in ("", task.data["answer"]))
"""

OPENENV = """
import sys
from environments.openenv import openenv_rollout, started

SERVER = f"{sys.executable} -m tests.adapters.openenv_server {{port}}"
good = openenv_rollout(started(SERVER), {"number": int}, max_turns=2)
planted = openenv_rollout(started(SERVER + " generous"), {"number": int}, max_turns=2)
"""

VERIFIERS = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from environments.verifiers import verifiers_rollout

good = verifiers_rollout("millrace-squares")
planted = verifiers_rollout("millrace-planted")
"""


def audited(
    folder: Path, code: str, name: str, rows: Iterable[dict[str, Any]], **options: Any
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """The audit of the rollout function of this name."""
    (folder / "environment.py").write_text(code)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = {"name": "audited", "task_file": "tasks.jsonl", "model": "m", "steps": 1}
    run |= {"batch_groups": 1, "group_size": 2, "environment": f"environment.py:{name}"}
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    only = PLANTED if name == "planted" else ONLY
    return audit_of(folder, only=only, tasks=2, timeout=600, **options)


def check(name: str, status: int, found: dict[str, dict[str, Any]], said: str) -> None:
    """A good one passes, and the planted one pays what is worth nothing."""
    assert status == (name == "planted"), said
    if name == "planted":
        assert "' is paid on" in found["reward.worthless"]["evidence"]
    else:
        assert list(found) == ONLY
        # Not all of them have a network or programs, or a known answer that is paid.
        others = {found.pop("reward.network")["verdict"], found.pop("reward.programs")["verdict"]}
        assert "fail" not in others, said
        assert {one["verdict"] for one in found.values()} == {"pass"}, said


@pytest.mark.parametrize("name", ["good", "planted"])
def test_a_gymnasium_environment(tmp_path: Path, name: str) -> None:
    rows = gymnasium_adapter.task_rows(3, 1, "A game.")
    check(name, *audited(tmp_path, GYMNASIUM, name, rows))


@pytest.mark.parametrize("name", ["good", "planted"])
def test_an_environment_with_tools_of_an_mcp_server(tmp_path: Path, name: str) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(MCP_SERVER)
    check(name, *audited(tmp_path, MCP, name, ROWS))


@pytest.mark.parametrize("name", ["good", "planted"])
def test_an_openenv_environment(tmp_path: Path, name: str) -> None:
    pytest.importorskip("openenv")
    rows = gymnasium_adapter.task_rows(3, 1, "Guess a number.")
    check(name, *audited(tmp_path, OPENENV, name, rows, parallel=1))


@pytest.mark.parametrize("name", ["good", "planted"])
def test_a_verifiers_environment(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verifiers")
    if find_spec("verifiers.envs") is None:
        pytest.skip("needs verifiers before 0.4")
    code = test_verifiers.ENVIRONMENT
    (tmp_path / "millrace_squares.py").write_text(code)
    planted = code.replace("answer in str(completion[-1].content)", "True")
    (tmp_path / "millrace_planted.py").write_text(planted)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = list(verifiers_adapter.task_rows(verifiers_adapter.load("millrace-squares")))
    check(name, *audited(tmp_path, VERIFIERS, name, rows))
