"""What was sampled and scored survives `kill -9` of the orchestrator."""

import asyncio
import json
import multiprocessing
import sqlite3
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
from services.orchestrator.core.results import GroupResult
from services.orchestrator.lifecycle.run import Run
from services.orchestrator.lifecycle.runs import Runs
from services.protocol.reward.reward_service import Score
from services.protocol.run.orchestrator import RunRequest, RunState, RunStatus
from tests.orchestrator.fakes import Asked, World, run_to_end, world

pytestmark = pytest.mark.usefixtures("no_drawing")

_LATE = 3  # of the run's groups, by id, the one that is still being sampled at the kill


def group_of(asked: Asked) -> int:
    return int(asked.session.split("-")[-2])


async def never(asked: Asked, index: int) -> None:
    if asked.body["n"] > 1 and group_of(asked) == _LATE:
        await asyncio.Event().wait()


def rows(run_dir: str) -> list[dict]:
    with sqlite3.connect(Path(run_dir) / "ledger.sqlite") as db:
        db.row_factory = sqlite3.Row
        query = "SELECT *, group_id IN (SELECT group_id FROM results) AS here FROM groups"
        return [dict(row) for row in db.execute(query)]


async def until_three_wait(run: Run) -> None:
    async with asyncio.timeout(300):
        while sum(row["here"] for row in rows(run.progress.run_dir)) < 3:
            await run._context.changes.after(run._context.changes.count, 0.01)


def run_until_killed(folder: Path, told: Connection) -> None:
    """A process of its own: it tells its run's id when three of four groups are finished."""

    async def live() -> None:
        async with world(folder) as cluster:
            cluster.router.hold = never
            runs = Runs(cluster.config, lambda: cluster.peers)
            config = cluster.run_config(rollout_timeout_s=600.0)
            status = await runs.start(RunRequest(config=config))
            await until_three_wait(runs.get(status.run_id))
            told.send(status.run_id)
            await asyncio.Event().wait()

    asyncio.run(live())


async def resume_run(folder: Path, run_id: str, newest: int | None) -> tuple[World, RunStatus]:
    async with world(folder) as cluster:
        cluster.bus.newest = newest
        config = cluster.run_config(rollout_timeout_s=600.0)
        return cluster, await run_to_end(cluster, config, resume=run_id)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that was killed, and its id."""
    folder = tmp_path_factory.mktemp("killed")
    context = multiprocessing.get_context("fork")
    heard, told = context.Pipe(duplex=False)
    process = context.Process(target=run_until_killed, args=(folder, told), daemon=True)
    process.start()
    told.close()
    assert heard.poll(300), "three groups finish"
    run_id = heard.recv()
    process.kill()
    process.join()
    return folder, run_id


def test_finished_groups_survive_kill_9_and_are_not_sampled_again(
    killed: tuple[Path, str],
) -> None:
    folder, run_id = killed
    before = {row["group_id"]: row for row in rows(str(folder / "runs" / run_id))}
    assert [group for group, row in before.items() if not row["here"]] == [_LATE]
    cluster, status = asyncio.run(resume_run(folder, run_id, None))
    assert (status.state, status.step) == (RunState.FINISHED, 5), status.detail
    asked = [group_of(one) for one in cluster.router.asked if one.body["n"] > 1]
    assert sorted(asked)[:2] == [_LATE, 5], "of the first four only the unfinished one"
    after = {row["group_id"]: row for row in rows(status.run_dir)}
    for group in {1, 2, 4}:
        assert (after[group]["attempts"], after[group]["train_step"]) == (1, 1)
        assert after[group]["tokens"] == before[group]["tokens"] > 0
    assert not any(row["here"] for row in after.values()), "a closed group's result is let go"
    ledger = Ledger(Path(status.run_dir) / "ledger.sqlite")
    assert ledger.imbalance() == 0
    ledger.close()


@pytest.fixture
async def waiting(tmp_path: Path):
    """A run that was cut off, as by a kill, with three of four groups finished."""
    async with world(tmp_path) as cluster:
        cluster.router.hold = never
        runs = Runs(cluster.config, lambda: cluster.peers)
        config = cluster.run_config(steps=2)
        status = await runs.start(RunRequest(config=config))
        await until_three_wait(runs.get(status.run_id))
        assert runs._life is not None
        runs._life.cancel()
        await asyncio.gather(runs._life, return_exceptions=True)
        cluster.router.hold = None
        cluster.router.asked.clear()
        yield cluster, config, status


def sampled_again(cluster: World) -> set[int]:
    return {group_of(asked) for asked in cluster.router.asked if asked.body["n"] > 1}


async def test_finished_groups_above_the_bound_are_sampled_again(waiting) -> None:
    cluster, config, status = waiting  # in `sync`: the trainer comes back with a new version
    end = await run_to_end(cluster, config, resume=status.run_id)
    assert end.state is RunState.FINISHED, end.detail
    assert {1, 2, 3, 4} <= sampled_again(cluster)
    attempts = {row["group_id"]: row["attempts"] for row in rows(end.run_dir)}
    assert [attempts[group] for group in (1, 2, 3, 4)] == [2, 2, 1, 2], "3 was cut off"


async def test_results_of_another_count_of_versions_are_not_used(waiting) -> None:
    cluster, config, status = waiting
    ledger = Ledger(Path(status.run_dir) / "ledger.sqlite")
    ledger.note(policy_version=99)  # the cluster is a new one
    ledger.close()
    end = await run_to_end(cluster, config, resume=status.run_id)
    assert end.state is RunState.FINISHED, end.detail
    assert {1, 2, 3, 4} <= sampled_again(cluster)


async def test_a_result_that_cannot_be_read_is_sampled_again(waiting) -> None:
    cluster, config, status = waiting
    publish = cluster.trainer._publish

    def not_the_first_time() -> None:  # as the weights are those that are published already
        cluster.trainer._publish = publish

    cluster.trainer._publish = not_the_first_time
    with sqlite3.connect(Path(status.run_dir) / "ledger.sqlite") as db:
        db.execute("UPDATE results SET result = X'00' WHERE group_id = 2")
    end = await run_to_end(cluster, config, resume=status.run_id)
    assert end.state is RunState.FINISHED, end.detail
    attempts = {row["group_id"]: row["attempts"] for row in rows(end.run_dir)}
    assert [attempts[group] for group in (1, 2, 3, 4)] == [1, 2, 1, 1]


async def test_a_task_that_is_gone_is_named_with_what_to_do(waiting) -> None:
    cluster, config, status = waiting
    (late,) = (row for row in rows(status.run_dir) if row["group_id"] == _LATE)
    left = [
        line
        for line in cluster.task_file.read_text().splitlines()
        if json.loads(line)["task_id"] != late["task_id"]
    ]
    cluster.task_file.write_text("\n".join(left))
    end = await run_to_end(cluster, config, resume=status.run_id)
    assert end.state is RunState.FAILED
    assert f"'{late['task_id']}' is not usable. Sample group {_LATE} of the run" in end.detail
    assert f"`--branch {status.run_id}`" in end.detail


def test_a_result_is_kept_bit_by_bit(result: GroupResult) -> None:
    packed = result.packed()
    assert GroupResult.unpacked(packed, group=result.group, task=result.task) == result
    assert (result.oldest_version, result.newest_version) == (4, 6)


def test_a_result_of_which_a_grader_said_half_a_character_is_kept(result: GroupResult) -> None:
    said = replace(result, ungraded=(Score.ungraded("it read \ud83d"),))
    unpacked = GroupResult.unpacked(said.packed(), group=result.group, task=result.task)
    assert unpacked.ungraded[0].detail == "it read ?"


@pytest.mark.parametrize(
    "ending",
    [
        lambda ledger: ledger.close_batch(1, train=[1], filtered=[]),
        lambda ledger: ledger.close_batch(1, train=[], filtered=[1]),
        lambda ledger: ledger.close_group(1, "expired", reason="stale"),
        lambda ledger: ledger.retry(1, reason="stale"),
        lambda ledger: ledger.rollback(0),
    ],
)
def test_a_result_is_there_until_its_group_closes_or_begins_anew(tmp_path: Path, ending) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.admit([Prompt(position=n, epoch=0, task_id="t") for n in range(2)], version=1)
    for group in (1, 2):
        ledger.rolled_out(group, oldest_version=1, tokens=3)
        ledger.keep_result(group, b"result %d" % group)
    ledger.rollback(0, keep=ledger.finished())
    assert ledger.finished() == {1, 2}
    assert ledger.result(2) == b"result 2"
    ending(ledger)
    assert 1 not in ledger.finished()
    ledger.close()
