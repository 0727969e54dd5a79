"""`millrace audit --url`: whether somebody's model can learn an environment."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy
from millrace_tools.deploy.run_file import read_run_file
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


async def audited(
    folder: Path,
    url: str | None,
    *words: str,
    environment: str | None = "good",
    rows: Sequence[dict] = ROWS,
) -> tuple[int, dict, str]:
    """Exit status, findings by check, and what was printed."""
    run_file(folder, environment, list(rows))
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
    return process.returncode or 0, {one["check"]: one for one in found}, written.decode()


ONLY = ("--only", "learnable")


async def test_a_model_that_is_right_now_and_then_can_learn(tmp_path: Path) -> None:
    async with Sometimes(known=4) as server:
        status, found, said = await audited(tmp_path, server.url, "--samples", "4", *ONLY)
    assert status == 0, said
    training = found.pop("learnable.training")
    assert training["verdict"] == "not measured"
    assert {one["verdict"] for one in found.values()} == {"pass"}, said
    assert found["learnable.headroom"]["evidence"].startswith("pass@1 25%, pass@4 50%")
    assert found["learnable.signal"]["evidence"].startswith("on 4 of 8 tasks; 4 are never paid")
    hard = found["learnable.difficulty"]["evidence"]
    assert hard.startswith("right: 4 never, 0 up to a quarter, 4 up to three quarters")
    assert hard.endswith("of a batch of 1 groups of 2 about 0.25 have rewards that differ")
    assert "75% are 0" in found["learnable.rewards"]["evidence"]
    assert found["learnable.noise"]["evidence"].startswith("0 of 32 episodes differ")


async def test_a_model_that_is_never_right_has_nothing_to_learn_from(tmp_path: Path) -> None:
    async with Sometimes(known=0) as server:
        status, found, said = await audited(tmp_path, server.url, "--samples", "2", *ONLY)
    assert status == 1, said
    verdicts = {name.partition(".")[2]: one["verdict"] for name, one in found.items()}
    assert (verdicts["headroom"], verdicts["signal"]) == ("fail", "fail")
    assert (verdicts["failures"], verdicts["difficulty"]) == ("pass", "warn")


async def test_a_reward_that_changes_by_itself_is_noise(tmp_path: Path) -> None:
    async with Sometimes(known=8) as server:
        status, found, said = await audited(
            tmp_path, server.url, "--samples", "4", *ONLY, environment="noisy"
        )
    assert status == 1, said
    assert found["learnable.noise"]["verdict"] == "fail"
    assert found["learnable.noise"]["evidence"].startswith("32 of 32 episodes differ")


async def test_a_given_trainer_gets_replicas_and_a_schedule(tmp_path: Path) -> None:
    trainer = ("--step-seconds", "1", "--tokens-per-second", "1", "--slots", "1")
    only = ("--only", "operations.replicas", "--samples", "1")
    async with Sometimes(known=8) as server:
        status, found, said = await audited(tmp_path, server.url, *only, *trainer)
    assert status == 0, said
    evidence = found["operations.replicas"]["evidence"]
    # Two answers of a token each, in as long as a train step, and the environment's own time: a run
    # in turns is idle for half of its time or more.
    busy = [int(one) for one in re.findall(r"keeps it busy for (\d+)%", evidence)]
    assert evidence.startswith("1 tokens an episode, 1 s a train step: `sync` keeps it busy for ")
    assert busy[0] <= 50, evidence
    assert busy[1] > 1.5 * busy[0], evidence
    written = tmp_path / "audit" / "run.yaml"
    schedule = read_run_file(written).schedule
    assert schedule.preset != "sync"
    assert f"`{schedule.preset}` keeps it busy for" in evidence
    assert f"`{schedule.preset}` keeps it busy for" in written.read_text()


async def test_without_a_model_it_is_not_measured(tmp_path: Path) -> None:
    status, found, said = await audited(
        tmp_path, None, *ONLY, "reward.search", "operations.replicas"
    )
    assert status == 0, said
    assert {one["verdict"] for one in found.values()} == {"not measured"}
    assert found.keys() >= {"learnable.headroom", "reward.search", "operations.replicas"}


async def test_a_server_that_is_not_there_is_no_reward(tmp_path: Path) -> None:
    status, found, _ = await audited(tmp_path, "http://127.0.0.1:1", "--samples", "1", *ONLY)
    assert status == 1
    assert found["learnable.headroom"]["verdict"] == "not measured"
    assert found["learnable.failures"]["verdict"] == "fail"


@pytest.mark.parametrize(
    "words",
    [
        ("--samples", "0"),
        ("--tries", "-1"),
        ("--only", "reward.leek"),
        ("--slots", "0"),
        ("--url", "127.0.0.1:8000"),
        ("--judge-url", "127.0.0.1:8000"),
        ("--key-env", "NO_SUCH_KEY"),
        ("--judge-key-env", "NO_SUCH_KEY"),
    ],
)
async def test_a_bad_option_is_named(tmp_path: Path, words: tuple[str, str]) -> None:
    url = None if words[0] == "--url" else "http://127.0.0.1:1"
    status, _, said = await audited(tmp_path, url, *words)
    assert status == 2, said
    assert words[0] in said
