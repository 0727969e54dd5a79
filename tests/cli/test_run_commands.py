"""`millrace ledger`, `logs`, `pause`, `unpause` and `checkpoint`."""

import subprocess
import sys
from pathlib import Path

import pytest

from millrace_tools.main import main
from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
from services.observability.log import Log
from services.orchestrator.run_folder.run_directory import run_log
from services.protocol.run.orchestrator import RunState
from services.protocol.run.profile import Profile, RankProfile
from tests.cli.conftest import Orchestra

CRASHING = """
import os, sys
from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
ledger = Ledger(sys.argv[1])
groups = ledger.admit([Prompt(position=i, epoch=0, task_id="t") for i in range(3)], version=1)
for group in groups:
    ledger.rolled_out(group.group_id, oldest_version=1, tokens=100)
ledger.close_batch(1, train=[1], filtered=[2])
ledger._db.execute("BEGIN IMMEDIATE")
ledger._db.execute("UPDATE groups SET status = 'trained'")
os.kill(os.getpid(), 9)
"""


def rows(shown: str) -> list[list[str]]:
    return [line.split() for line in shown.splitlines()]


def test_the_ledger_of_a_crashed_run_is_shown_and_balances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ledger.sqlite"
    died = subprocess.run([sys.executable, "-c", CRASHING, str(file)], timeout=300, check=False)
    assert died.returncode == -9
    before = file.read_bytes()
    assert main(["ledger", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for row in (["admitted", "3", "300"], ["trained", "1", "100"], ["in", "flight", "1", "100"]):
        assert row in rows(shown)
    assert "100 of 300 sampled tokens trained nothing (33.3%)" in shown
    assert ["filtered", "100"] in rows(shown)
    assert "The ledger balances." in shown
    assert file.read_bytes() == before


def test_a_ledger_that_is_off_says_by_how_much_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.admit([Prompt(position=0, epoch=0, task_id="t")], version=1)
    ledger._db.execute("DELETE FROM groups")
    assert main(["ledger", str(tmp_path)]) == 1, "while its run has it open"
    assert "DOES NOT BALANCE: the sides differ by 1" in capsys.readouterr().out
    ledger.close()


def test_a_folder_without_a_ledger_or_with_another_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", str(tmp_path)]) == 2
    assert "It holds no ledger.sqlite." in capsys.readouterr().err
    (tmp_path / "ledger.sqlite").write_text("no database at all " * 100)
    assert main(["ledger", str(tmp_path)]) == 2
    assert "cannot be read as a ledger" in capsys.readouterr().err
    assert main(["logs", str(tmp_path)]) == 2
    assert "The log cannot be read" in capsys.readouterr().err


def test_what_was_logged_about_a_run_is_shown_without_other_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log("orchestrator")
    with run_log(tmp_path, "mine"):
        log.info("step", run="mine", step=1)
        log.info("step", run="other", step=5)
        log.warning("rollout_failed", run="mine", group=7, reason="deadline")
    log.info("step", run="mine", step=2)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"cut short')
    assert main(["logs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "info step step=1",
        "warning rollout_failed group=7 reason=deadline",
    ]
    assert main(["logs", str(tmp_path), "--lines", "1"]) == 0
    assert "step=1" not in capsys.readouterr().out


def test_a_run_is_paused_by_its_id_or_as_the_active_one(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    paused = orchestra.status(state=RunState.PAUSED, step=1).model_dump(mode="json")
    orchestra.replies["POST", "/v1/runs/tiny-1/pause"] = (200, paused)
    assert main(["pause", "--url", orchestra.url]) == 0
    assert main(["pause", "tiny-1", "--url", orchestra.url]) == 0
    assert capsys.readouterr().out == "tiny-1: paused at train step 1\n" * 2
    assert [path for path, _ in orchestra.posted] == ["/v1/runs/tiny-1/pause"] * 2


def test_a_profile_is_waited_for_and_shown_as_a_table(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = RankProfile(
        rank=1,
        last_step=4,
        steps=2,
        seconds=2.0,
        recorded_seconds=1.5,
        phases={"forward_backward": 1.5, "between": 0.5},
        kinds={"matmul": 1.0, "idle": 0.5},
        operators={"aten::mm": 1.0},
        trace="/runs/tiny-1/profiles/step-00000003/rank1.trace.json.gz",
    )
    begun = Profile(name="step-00000003", folder="/runs/tiny-1/profiles/step-00000003")
    done = begun.model_copy(update={"ranks": (rank,)}).model_dump(mode="json")
    base = "/v1/runs/tiny-1"
    orchestra.replies["POST", f"{base}/profile"] = (202, begun.model_dump(mode="json"))
    orchestra.replies["GET", f"{base}/profiles/step-00000003"] = (200, done)
    arguments = ["profile", "tiny-1", "--steps", "2", "--ranks", "1", "--url", orchestra.url]
    assert main(arguments) == 0
    assert orchestra.posted == [(f"{base}/profile", {"steps": 2, "ranks": [1]})]
    shown = capsys.readouterr().out
    assert "rank 1, 2 steps up to 4, 2.00 s" in shown
    for part in ("forward_backward", "75%", "aten::mm", "67%", "rank1.trace.json.gz"):
        assert part in shown
    assert main(["profile", "tiny-1", "--ranks", "one", "--url", orchestra.url]) == 2


def test_a_profile_that_no_rank_can_write_any_more_is_not_waited_for(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = Profile(name="step-00000001", folder="/f", last_step=-1)
    base = "/v1/runs/tiny-1"
    orchestra.replies["POST", f"{base}/profile"] = (202, begun.model_dump(mode="json"))
    orchestra.replies["GET", f"{base}/profiles/{begun.name}"] = (200, begun.model_dump(mode="json"))
    assert main(["profile", "tiny-1", "--url", orchestra.url]) == 1
    assert "1 ranks left no profile" in capsys.readouterr().out


def test_without_an_active_run_there_is_nothing_to_unpause(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/v1/runs"] = (200, [])
    assert main(["unpause", "--url", orchestra.url]) == 2
    assert "No run is active, so there is nothing to unpause." in capsys.readouterr().err
