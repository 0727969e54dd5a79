"""However a run ends, it is seen to have ended, and what it trained is kept."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.ledger.ledger import LedgerError
from services.observability.metrics import Gauge, RunMetrics
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.loop.groups import Groups
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.orchestrator.trackers.tracker import Trackers
from services.protocol.errors import NotReady
from services.protocol.run.orchestrator import RunRequest, RunState, RunStatus
from services.protocol.trainer import CheckpointReport
from tests.orchestrator.fakes import World, run_to_end, world


@pytest.fixture
def failed_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts of the ends of runs that were counted as failed."""
    parts: list[str] = []
    monkeypatch.setattr(RunMetrics.end_failures, "inc", lambda _, tags: parts.append(tags["part"]))
    return parts


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states in which runs were counted as ended."""
    states: list[str] = []
    monkeypatch.setattr(RunMetrics.ended, "inc", lambda _, tags: states.append(tags["state"]))
    return states


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


async def train_until(cluster: World, step: int, **changes: object) -> tuple[Runs, str]:
    """A run whose trainer stands still after `step` until it is let go."""
    runs = Runs(cluster.config, lambda: cluster.peers)
    reached = asyncio.Event()
    train = cluster.trainer.train

    async def train_and_stand_still(batch):
        if batch.step > step:
            reached.set()
            await asyncio.sleep(0.05)
        return await train(batch)

    cluster.trainer.train = train_and_stand_still
    run_id = (await runs.start(RunRequest(config=cluster.run_config(**changes)))).run_id
    async with asyncio.timeout(300):
        await reached.wait()
    return runs, run_id


async def stopped(runs: Runs, run_id: str) -> RunStatus:
    async with asyncio.timeout(300):
        return await runs.stop(run_id)


async def test_a_stop_that_cannot_save_still_ends_the_run(
    tmp_path: Path, no_drawing: None, failed_parts: list[str], ends: list[str]
) -> None:
    async with world(tmp_path) as cluster:

        async def save(*_: Any) -> CheckpointReport:
            raise RuntimeError("No space left on device")

        cluster.trainer.save = save
        runs, run_id = await train_until(cluster, 2, checkpoint={"every": 100}, steps=50)
        status = await stopped(runs, run_id)
        assert status.state is RunState.STOPPED
        assert failed_parts == ["checkpoint"]
        assert status.summary is not None
        del cluster.trainer.save
        after = await run_to_end(cluster, cluster.run_config(steps=1))
        assert after.state is RunState.FINISHED, "the cluster is free for the next run"
        assert ends == ["stopped", "finished"]


async def test_a_run_whose_last_checkpoint_fails_ends_as_failed(
    tmp_path: Path, no_drawing: None, ends: list[str]
) -> None:
    async with world(tmp_path, no_signal_batches=1) as cluster:

        async def save(*_: Any) -> CheckpointReport:
            raise RuntimeError("No space left on device")

        cluster.trainer.save = save
        cluster.router.answers = lambda asked, index, version: True
        status = await run_to_end(cluster, cluster.run_config())
        assert status.state is RunState.FAILED
        assert "No space left" in status.detail
        assert ends == ["failed"]


async def test_a_run_with_nothing_to_learn_finishes_without_a_trainer_if_all_steps_are_saved(
    tmp_path: Path, no_drawing: None
) -> None:
    async with world(tmp_path, no_signal_batches=2) as cluster:
        trainer, save = cluster.trainer, cluster.trainer.save
        saved: list[int] = []

        async def save_each_step_once(*given: Any) -> CheckpointReport:
            if trainer.step in saved:
                raise NotReady("the trainer holds no run")
            saved.append(trainer.step)
            return await save(*given)

        trainer.save = save_each_step_once
        cluster.router.answers = lambda asked, index, version: index % 2 == 0 or version > 1
        status = await run_to_end(cluster, cluster.run_config(checkpoint={"every": 1}))
        assert (status.state, status.step) == (RunState.FINISHED, saved[-1]), status.detail
        assert "nothing left to learn" in status.detail


async def test_the_ledger_is_on_the_disk_itself_before_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_drawing: None
) -> None:
    events: list[str] = []
    synchronise = os.fsync

    def noted(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith("-wal"):
            events.append("ledger")
        synchronise(file)

    monkeypatch.setattr(os, "fsync", noted)
    async with world(tmp_path) as cluster:
        save = cluster.trainer.save

        async def save_and_note(*given: Any) -> CheckpointReport:
            events.append("checkpoint")
            return await save(*given)

        cluster.trainer.save = save_and_note
        status = await run_to_end(cluster, cluster.run_config(steps=3, checkpoint={"every": 1}))
        assert status.state is RunState.FINISHED, status.detail
    assert events == ["ledger", "checkpoint"] * 3


async def test_a_run_whose_summary_cannot_be_written_ends_as_failed_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed_parts: list[str]
) -> None:
    monkeypatch.setattr(RunRecord, "summarise", full_disk)
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert status.state is RunState.FAILED
        assert "No space left" in status.detail
        assert status.ledger.trained + status.ledger.filtered == 4
        assert failed_parts == ["summary"]


async def test_a_picture_that_cannot_be_drawn_costs_only_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed_parts: list[str]
) -> None:
    monkeypatch.setattr(RunDirectory, "draw_learning_curve", full_disk)
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert status.state is RunState.FINISHED
        assert status.summary is not None
        assert failed_parts == ["learning_curve"]


async def test_who_asks_while_the_trackers_of_a_run_are_closed_gets_an_answer(
    tmp_path: Path, no_drawing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, answered = threading.Event(), threading.Event()

    def close(*_: object) -> None:
        closing.set()
        assert answered.wait(300)

    monkeypatch.setattr(Trackers, "close", close)
    async with world(tmp_path) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        run_id = (await runs.start(RunRequest(config=cluster.run_config(steps=1)))).run_id
        async with asyncio.timeout(300):
            await asyncio.to_thread(closing.wait, 20)
            assert runs.get(run_id).status().ledger.in_flight == 0
            answered.set()
            assert (await runs.ended(run_id)).state is RunState.FINISHED


async def test_a_bus_that_breaks_at_the_end_does_not_keep_the_run_open(
    tmp_path: Path, no_drawing: None, failed_parts: list[str]
) -> None:
    async with world(tmp_path) as cluster:
        bound_lag = cluster.bus.bound_lag

        async def bound_or_break(max_lag: int | None) -> None:
            if max_lag is None:
                raise RuntimeError("the bus broke")
            await bound_lag(max_lag)

        cluster.bus.bound_lag = bound_or_break
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert status.state is RunState.FINISHED
        assert failed_parts == ["lag_bound"]


@contextmanager
def saves(cluster: World) -> Iterator[list[int]]:
    """Steps of the checkpoints written."""
    steps: list[int] = []
    save = cluster.trainer.save

    async def noted(*about: Any) -> CheckpointReport:
        report = await save(*about)
        steps.append(report.saved_step)
        return report

    cluster.trainer.save = noted
    yield steps


async def test_a_stop_during_an_evaluation_keeps_what_was_trained(
    tmp_path: Path, no_drawing: None
) -> None:
    async with world(tmp_path) as cluster:
        evaluating = asyncio.Event()

        async def hold(asked, index: int) -> None:
            if asked.body["temperature"] == 0 and cluster.trainer.step:
                evaluating.set()
                await asyncio.sleep(60)

        cluster.router.hold = hold
        config = cluster.run_config(steps=3, checkpoint={"every": 100}, rollout_timeout_s=100)
        runs = Runs(cluster.config, lambda: cluster.peers)
        with saves(cluster) as steps:
            run_id = (await runs.start(RunRequest(config=config))).run_id
            async with asyncio.timeout(300):
                await evaluating.wait()
            assert runs.get(run_id).status().state is RunState.EVALUATING
            status = await stopped(runs, run_id)
        assert (status.state, status.step) == (RunState.STOPPED, 3)
        assert steps == [3]


async def test_a_stop_writes_no_checkpoint_twice(tmp_path: Path, no_drawing: None) -> None:
    async with world(tmp_path) as cluster:
        with saves(cluster) as steps:
            runs, run_id = await train_until(cluster, 2, checkpoint={"every": 1}, steps=50)
            status = await stopped(runs, run_id)
        assert steps == list(range(1, status.step + 1))


async def test_a_group_that_has_just_closed_may_be_cancelled(
    tmp_path: Path, no_drawing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of a group's task and its callback the ledger has the group closed."""
    met: list[int] = []
    errors: list[LedgerError] = []
    ended = Groups._ended

    def cancel_first(self: Groups, group_id: int, rolling, task) -> None:
        met.append(group_id)
        try:
            self._abandon(group_id)
        except LedgerError as error:
            errors.append(error)
        ended(self, group_id, rolling, task)

    monkeypatch.setattr(Groups, "_ended", cancel_first)
    async with world(tmp_path) as cluster:
        cluster.reward.ungraded = lambda job: "evaluation" not in job.job_id
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert len(met) >= 16, status.detail
        assert errors == []
        assert "sample groups failed in a row" in status.detail
        assert status.ledger.failed == status.ledger.admitted - status.ledger.in_flight


async def test_the_gauges_of_a_run_end_with_it(tmp_path: Path, no_drawing: None) -> None:
    async with world(tmp_path) as cluster:
        gauges = [metric for metric in vars(RunMetrics).values() if isinstance(metric, Gauge)]
        status = await run_to_end(cluster, cluster.run_config(steps=2))
        assert status.state is RunState.FINISHED
        tags = ("run", status.run_id)
        assert [gauge for gauge in gauges if any(tags in key for key in gauge._last)] == []
