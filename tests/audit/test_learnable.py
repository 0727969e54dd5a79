"""`millrace audit --url`: whether somebody's model can learn an environment."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from tests.audit.test_audit import ROWS, run_file


class Sometimes(ScriptedPolicy):
    """Knows the code of every room whose number is below `known`, every second time."""

    def __init__(self, known: int) -> None:
        super().__init__()
        self._known, self._asked = known, 0

    def say(self, episode, messages):
        said = messages[-1]["content"]
        room = int(said.split("room ")[1].rstrip("?"))
        self._asked += 1
        right = room < self._known and self._asked % 2
        return f"k{1000 + 37 * room}" if right else "no"


async def audited(folder: Path, url: str | None, *words: str) -> tuple[int, dict, str]:
    run_file(folder, "good", ROWS)
    asked = ["--url", url] if url else []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace_tools.main", "audit", str(folder / "run.yaml")),
        *("--out", str(folder / "audit"), "--episodes", "20", "--parallel", "1", *asked, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    written, _ = await asyncio.wait_for(process.communicate(), 840)
    report = folder / "audit" / "audit.json"
    found = json.loads(report.read_text())["findings"] if report.exists() else []
    learnable = {one["check"].split(".")[1]: one for one in found if "learnable" in one["check"]}
    return process.returncode or 0, learnable, written.decode()


async def test_a_model_that_is_right_now_and_then_can_learn(tmp_path: Path) -> None:
    async with Sometimes(known=4) as server:
        status, found, said = await audited(tmp_path, server.url, "--samples", "4")
    assert status == 0, said
    assert {one["verdict"] for one in found.values()} == {"pass"}, said
    assert found["headroom"]["evidence"].startswith("pass@1 25%, pass@4 50%")
    assert found["signal"]["evidence"].startswith("on 4 of 8 tasks; 4 are never paid")


async def test_a_model_that_is_never_right_has_nothing_to_learn_from(tmp_path: Path) -> None:
    async with Sometimes(known=0) as server:
        status, found, said = await audited(tmp_path, server.url, "--samples", "2")
    assert status == 1, said
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert verdicts == {"headroom": "fail", "signal": "fail", "failures": "pass"}


async def test_without_a_model_it_is_not_measured(tmp_path: Path) -> None:
    status, found, said = await audited(tmp_path, None)
    assert status == 0, said
    assert found["headroom"]["verdict"] == "not measured"


async def test_a_server_that_is_not_there_is_no_reward(tmp_path: Path) -> None:
    status, found, _ = await audited(tmp_path, "http://127.0.0.1:1", "--samples", "1")
    assert status == 1
    assert found["headroom"]["verdict"] == "not measured"
    assert found["failures"]["verdict"] == "fail"


@pytest.mark.parametrize(
    "words", [("--samples", "0"), ("--url", "127.0.0.1:8000"), ("--key-env", "NO_SUCH_KEY")]
)
async def test_a_bad_option_is_named(tmp_path: Path, words: tuple[str, str]) -> None:
    url = None if words[0] == "--url" else "http://127.0.0.1:1"
    status, _, said = await audited(tmp_path, url, *words)
    assert status == 2, said
    assert words[0] in said
