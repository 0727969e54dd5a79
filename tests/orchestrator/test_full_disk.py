"""A disk without room costs a run time, and what only shows things; never what it has done."""

import asyncio
import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services.ledger.ledger import Ledger, LedgerError
from services.ledger.sample_group import Prompt
from services.observability.metrics import RunMetrics
from services.orchestrator.core.results import GroupResult
from services.orchestrator.lifecycle.run import Run
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.observers.group_record import GroupRecord
from services.orchestrator.run_folder.journal import Journal
from services.protocol.run.orchestrator import RunRequest, RunState, RunStatus
from services.protocol.trainer import CheckpointReport
from tests.filling import fill
from tests.orchestrator.fakes import World, run_to_end, world

pytestmark = pytest.mark.usefixtures("no_drawing")


def prompts(count: int, start: int = 0) -> list[Prompt]:
    return [Prompt(position=start + i, epoch=0, task_id="t") for i in range(count)]


def killed(path: Path, folder: Path) -> Ledger:
    """The ledger that a kill now would leave."""
    # Without the lease of this process, which is not killed.
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("filling", "*.writer"))
    return Ledger(folder / path.name)


@pytest.mark.usefixtures("each_file_system")
def test_the_ledger_goes_on_without_room_and_its_file_catches_up(
    small_disk: Path, tmp_path: Path
) -> None:
    path = small_disk / "ledger.sqlite"
    ledger = Ledger(path)
    told: list[None] = []
    ledger.fell_behind = lambda: told.append(None)
    ledger.admit(prompts(300), version=1)
    ledger.keep_result(1, b"early")
    filling = fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "other").write_bytes(b"x" * 9000)

    admitted = ledger.admit(prompts(300, 300), version=1)  # more than the last page can take
    assert admitted[0].group_id == 301
    assert ledger.behind
    ledger.rolled_out(301, oldest_version=1, tokens=7)
    ledger.keep_result(301, b"late")
    ledger.close_batch(1, train=[1, 2], filtered=[3])
    with pytest.raises(LedgerError):
        ledger.close_group(2, "expired")
    assert not ledger.catch_up()
    assert (ledger.counts().trained, ledger.last_step(), ledger.imbalance()) == (2, 1, 0)
    assert ledger.finished() == {301}, "what closed has left"
    assert told == [None], "told once"
    before = killed(path, tmp_path / "killed")
    assert (before.counts().admitted, before.last_step(), before.imbalance()) == (300, 0, 0)
    assert before.result(1) == b"early"
    before.close()

    filling.unlink()
    assert ledger.catch_up()
    assert not ledger.behind
    ledger.admit(prompts(1, 600), version=2)
    ledger.close()
    again = Ledger(path)
    assert (again.counts().admitted, again.counts().trained, again.last_step()) == (601, 2, 1)
    assert (again.result(301), again.imbalance()) == (b"late", 0)
    again.close()


class Quota:
    """A connection whose file may not grow: to SQLite an error of input and output."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real, self.used_up = real, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.used_up:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
            raise error
        return self._real.execute(statement, values)


@pytest.mark.usefixtures("each_file_system")
def test_a_quota_that_is_used_up_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    file = ledger._db
    quota = file._file = file.connection = Quota(file._file)  # type: ignore[assignment]
    with pytest.raises(sqlite3.OperationalError):  # there is room: it is something else
        ledger.admit(prompts(1), version=1)

    def refuse(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", refuse)
    ledger.admit(prompts(1), version=1)
    assert ledger.behind
    assert not ledger.catch_up()
    quota.used_up = False
    assert ledger.catch_up()
    assert not ledger.behind
    assert ledger.counts().admitted == 1
    ledger.close()


@pytest.mark.usefixtures("each_file_system")
def test_room_for_a_part_of_what_is_late_takes_that_part_and_the_rest_follows(
    small_disk: Path,
) -> None:
    ledger = Ledger(small_disk / "ledger.sqlite")
    ledger.admit(prompts(40), version=1)
    filling = fill(small_disk)
    for group_id in range(1, 41):
        ledger.keep_result(group_id, bytes([group_id]) * 8000)
    filling.unlink()
    filling = fill(small_disk, but=200_000)
    assert not ledger.catch_up()
    with sqlite3.connect(small_disk / "ledger.sqlite") as reader:
        (arrived,) = reader.execute("SELECT COUNT(*) FROM results").fetchone()
    reader.close()
    assert 0 < arrived < 40
    assert len(ledger.finished()) == 40, "the account itself has all"
    filling.unlink()
    assert ledger.catch_up()
    ledger.close()
    again = Ledger(small_disk / "ledger.sqlite")
    assert [again.result(one) for one in range(1, 41)] == [bytes([i]) * 8000 for i in range(1, 41)]
    again.close()


@pytest.mark.usefixtures("each_file_system")
def test_an_error_that_is_not_about_room_is_raised(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger._db.connection.execute("PRAGMA busy_timeout = 1")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ledger.admit(prompts(1), version=1)
        other.execute("ROLLBACK")
    other.close()
    assert not ledger.behind
    ledger.admit(prompts(1), version=1)
    ledger.close()


async def in_first_step(cluster: World, **changes: object) -> Run:
    """A run whose trainer stands still in its first step until `cluster.trainer.hold` is set."""
    cluster.trainer.hold = asyncio.Event()
    runs = Runs(cluster.config, lambda: cluster.peers)
    status = await runs.start(RunRequest(config=cluster.run_config(**changes)))
    run = runs.get(status.run_id)
    assert isinstance(run, Run)
    async with asyncio.timeout(300):
        await cluster.trainer.entered.wait()
    return run


async def until(run: Run, condition: Callable[[RunStatus], bool]) -> RunStatus:
    async with asyncio.timeout(300):
        while not condition(run.status()):
            await run._context.changes.after(run._context.changes.count, 0.02)
    return run.status()


async def test_a_run_waits_until_its_ledger_can_be_written_and_goes_on_by_itself(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(RunMetrics.disk_full, "set", lambda value, _: told.append(value))
    async with world(small_disk) as cluster:
        run = await in_first_step(cluster)
        filling = fill(small_disk)
        assert cluster.trainer.hold is not None
        cluster.trainer.hold.set()
        status = await until(run, lambda s: s.state is RunState.DISK_FULL and s.step == 1)
        assert (
            f"no disk space for the ledger: 0 bytes are free at {run.progress.run_dir}"
            in status.detail
        )
        assert "3600 s more at most" in status.detail
        assert not cluster.trainer.checkpoints, "none is ahead of the ledger's file"
        with closing(killed(Path(status.run_dir) / "ledger.sqlite", tmp_path / "killed")) as left:
            assert (left.last_step(), left.imbalance()) == (0, 0)
        filling.unlink()
        status = await until(run, lambda s: s.summary is not None and not run.progress.active)
        assert (status.state, status.step) == (RunState.FINISHED, 5)
        assert told == [1.0, 0.0]
        with closing(Ledger(Path(status.run_dir) / "ledger.sqlite")) as ledger:
            counts = ledger.counts()
            assert (counts.trained + counts.filtered, ledger.imbalance()) == (20, 0)
            assert counts == status.ledger


async def test_a_run_that_finds_no_room_in_time_fails_with_the_fix_and_can_be_resumed(
    small_disk: Path,
) -> None:
    async with world(small_disk, disk_full_timeout_s=0.2) as cluster:
        run = await in_first_step(cluster)
        filling = fill(small_disk)
        assert cluster.trainer.hold is not None
        cluster.trainer.hold.set()
        status = await until(run, lambda s: s.state is RunState.FAILED)
        assert "no disk space for the ledger in 0.2 s: 0 bytes are free at" in status.detail
        assert f"--resume {status.run_id}`" in status.detail
        filling.unlink()
        again = await run_to_end(cluster, cluster.run_config(), resume=status.run_id)
        assert again.state is RunState.FINISHED
        with closing(sqlite3.connect(Path(status.run_dir) / "ledger.sqlite")) as db:
            rows = db.execute("SELECT position, status FROM groups ORDER BY position").fetchall()
        assert [position for position, _ in rows] == list(range(len(rows))), "no prompt is skipped"
        assert sum(ending in ("trained", "filtered") for _, ending in rows) == 20


@pytest.mark.parametrize("at_once", [True, False], ids=["told by the save", "told by a later step"])
async def test_a_run_waits_until_a_checkpoint_can_be_written(tmp_path: Path, at_once: bool) -> None:
    async with world(tmp_path) as cluster:
        trainer, full, waited = cluster.trainer, True, []
        save, train = trainer.save, trainer.train
        none = CheckpointReport(problem="No space left on device", disk_full=True)

        async def save_if_there_is_room(run_id, frontier=None, wait=True):
            waited.append((trainer.step, wait))
            if full and (wait or at_once):
                return none
            return CheckpointReport() if full else await save(run_id, frontier, wait)

        async def train_and_tell(batch):
            report = await train(batch)
            if not at_once and batch.step == 3:
                object.__setattr__(report, "checkpoint", none)
            return report

        trainer.save, trainer.train = save_if_there_is_room, train_and_tell
        trainer.shares_devices = True
        runs = Runs(cluster.config, lambda: cluster.peers)
        status = await runs.start(RunRequest(config=cluster.run_config()))
        run = runs.get(status.run_id)
        status = await until(run, lambda s: s.state is RunState.DISK_FULL)
        step = 2 if at_once else 3
        assert f"no disk space for the checkpoint of step {step}" in status.detail
        assert trainer.turns[-1] == f"end behind {step}", "engines stand still meanwhile"
        full = False
        status = await until(run, lambda s: not run.progress.active)
        assert status.state is RunState.FINISHED
        assert waited[0] == (2, False), "while there is room nobody waits for a checkpoint"
        assert (step, True) in waited
        assert [one for one, _ in next(iter(trainer.checkpoints.values()))] == [step, 4, 5]


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str, str]]:
    """Lines that were counted as dropped, with file and cause."""
    counted: list[tuple[float, str, str]] = []
    monkeypatch.setattr(
        RunMetrics.dropped,
        "inc",
        lambda lines, tags: lines and counted.append((lines, tags["file"], tags["cause"])),
    )
    return counted


def test_a_journal_drops_what_does_not_fit_and_goes_on_with_whole_lines(
    small_disk: Path, dropped: list[tuple[float, str, str]]
) -> None:
    path = small_disk / "groups.jsonl"
    journal = Journal(path)
    journal.write({"n": 0})
    filling = fill(small_disk)
    # The page of the file takes some; the line that crosses its end is cut short.
    journal.write(*({"n": n, "text": "x" * 3000} for n in (1, 2, 3)))
    assert [line["n"] for line in journal.lines()] == [0, 1]
    journal.write({"n": 4, "text": "x" * 3000})
    filling.unlink()
    journal.write({"n": 5})
    journal.close()
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [0, 1, 5]
    assert dropped == [(2, path.name, "disk"), (1, path.name, "disk")]


def test_a_line_that_a_kill_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "pass_rates.jsonl"
    path.write_text('["a", 1.0]\n["b", 0.' + "3" * 70_000)
    journal = Journal(path)
    assert journal.lines() == [["a", 1.0]]
    journal.write(["c", 0.5])
    journal.close()
    assert path.read_text() == '["a", 1.0]\n["c", 0.5]\n'


def test_a_number_that_json_has_not_is_null_and_spoils_no_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.write({"loss": float("nan"), "grad_norm": float("inf"), "step": 1})
    journal.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert line == '{"loss": null, "grad_norm": null, "step": 1}'


def test_steps_are_taken_back_without_room_for_a_copy(
    small_disk: Path, dropped: list[tuple[float, str, str]]
) -> None:
    path = small_disk / "evaluations.jsonl"
    journal = Journal(path)
    journal.write({"step": 1}, {"step": 3, "text": "x" * 9000}, {"step": 2}, {"step": 4})
    fill(small_disk)
    assert journal.keep(lambda line: line["step"] <= 3)
    assert [line["step"] for line in journal.lines()] == [1, 3, 2]
    assert journal.keep(lambda line: line["step"] <= 2)
    assert [line["step"] for line in journal.lines()] == [1], "cut at the first to go"
    assert dropped == [(1, path.name, "disk")]
    journal.close()


def test_what_may_have_no_gap_ends_where_a_line_is_missing_and_says_so(
    small_disk: Path, dropped: list[tuple[float, str, str]]
) -> None:
    journal = Journal(small_disk / "decisions.jsonl", last=["full", {}, None])
    journal.write(["first"])
    filling = fill(small_disk)
    journal.write(["lost" * 5000])
    journal.write(["late"])
    filling.unlink()
    journal.write(["later"])
    journal.close()
    assert journal.lines() == [["first"], ["full", {}, None]]
    assert sum(lines for lines, _, _ in dropped) == 3


async def test_groups_are_bounded_in_bytes(
    tmp_path: Path, result: GroupResult, dropped: list[tuple[float, str, str]]
) -> None:
    groups, tokens = tmp_path / "groups.jsonl", tmp_path / "tokens.jsonl"
    record = GroupRecord(groups, tokens, max_bytes=1000)
    for step in range(1, 11):
        record.write_groups([result], step)
    await record.close()
    lines = [json.loads(line) for line in groups.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert 0 < groups.stat().st_size <= 1000
    assert dropped == [(1, "groups.jsonl", "bound")] * (10 - len(lines))
