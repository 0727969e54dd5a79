"""A run is resumed as what it was, or another one branches off it; nothing is closed by mistake."""

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.run_folder import earlier_run
from services.orchestrator.run_folder.earlier_run import EarlierRun
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState, RunStatus
from tests.orchestrator.fakes import World, run_to_end, world

pytestmark = pytest.mark.usefixtures("no_drawing")
STEPS = 6


async def stopped(cluster: World) -> RunStatus:
    """A run that was stopped at step 3 or later, with groups in flight."""
    cluster.trainer.train_s = 0.01
    runs = Runs(cluster.config, lambda: cluster.peers)
    config = cluster.run_config(steps=STEPS, schedule={"preset": "one_step_off"})
    run_id = (await runs.start(RunRequest(config=config))).run_id
    async with asyncio.timeout(300):
        while runs.get(run_id).status().step < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        status = await runs.stop(run_id)
    assert status.state is RunState.STOPPED
    assert status.step < STEPS
    return status


def config_of(status: RunStatus) -> RunConfig:
    return RunDirectory(status.run_dir).read_config()


def changed(status: RunStatus, **changes: Any) -> RunConfig:
    return RunConfig.model_validate(config_of(status).model_dump(mode="json") | changes)


async def refused(cluster: World, config: RunConfig, **request: str) -> InvalidInput:
    runs = Runs(cluster.config, lambda: cluster.peers)
    with pytest.raises(InvalidInput) as problem:
        await runs.start(RunRequest(config=config, **request))
    assert runs.list() == []
    return problem.value


def rows(status: RunStatus) -> list[tuple[Any, ...]]:
    with sqlite3.connect(Path(status.run_dir) / "ledger.sqlite") as ledger:
        return ledger.execute("SELECT * FROM groups").fetchall()


async def test_an_end_that_the_run_has_passed_is_refused_and_closes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        first = await stopped(cluster)
        before = rows(first)
        assert first.ledger.in_flight > 0
        for steps in (1, first.step):
            problem = await refused(cluster, changed(first, steps=steps), resume=first.run_id)
            assert (problem.field, problem.value) == ("steps", steps)
            assert f"has done {first.step} of {STEPS} train steps" in problem.fix
            assert f"`--steps {STEPS}`" in problem.fix
        assert rows(first) == before
        assert config_of(first).steps == STEPS
        status = await run_to_end(cluster, config_of(first), resume=first.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, STEPS)


async def test_the_folders_run_file_follows_a_resume_so_that_it_resumes_again(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        first = await run_to_end(cluster, cluster.run_config(steps=2))
        await run_to_end(cluster, cluster.run_config(steps=4), resume=first.run_id)
        assert config_of(first).steps == 4
        problem = await refused(cluster, cluster.run_config(steps=2), resume=first.run_id)
        assert "give `--steps`, more than 4." in problem.fix
        again = await run_to_end(cluster, config_of(first), resume=first.run_id)
        assert (again.state, again.step) == (RunState.FINISHED, 4)


async def test_keys_that_differ_are_listed_as_old_and_new(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        first = await run_to_end(cluster, cluster.run_config(steps=1))
        differs = cluster.run_config(
            steps=2,
            seed=9,
            algorithm={"loss": "gspo", "clip_low": 3e-4},
            schedule={"preset": "async", "max_staleness": 2},
            trackers=["tensorboard"],
        )
        problem = await refused(cluster, differs, resume=first.run_id)
        assert (problem.field, problem.value) == ("seed", 9)
        lines = [line.strip() for line in problem.fix.splitlines()]
        assert lines[0] == f"Run {first.run_id} began with other values, old -> new:"
        assert "seed: 0 -> 9" in lines
        assert 'algorithm.loss: "clip" -> "gspo"' in lines
        assert "algorithm.clip_low: 0.2 -> 0.0003" in lines
        assert any(line.startswith("schedule.max_staleness: ") for line in lines)
        assert not any(line.startswith(("steps", "trackers")) for line in lines)
        assert f"`--branch {first.run_id}` in place of `--resume`" in lines[-1]
        assert "AlgorithmConfig" not in problem.fix


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ({"task_file": "/a/t.jsonl"}, {"task_file": "/b/t.jsonl"}, None),
        ({"task_file": "/a/t.jsonl"}, {"task_file": "/a/other.jsonl"}, "task_file"),
        ({"environment": "/a/e.py:f"}, {"environment": "/b/e.py:f"}, None),
        ({"environment": "/a/e.py:f"}, {"environment": "/a/e.py:g"}, "environment"),
        ({"environment": "/a/e.py:f"}, {"environment": "external"}, "environment"),
        ({"algorithm": {"loss": "/a/l.py:f"}}, {"algorithm": {"loss": "/b/l.py:f"}}, None),
        ({"tasks": [{"file": "/a/t"}]}, {"tasks": [{"file": "/b/t"}]}, None),
        ({"tasks": [{"file": "/a/t"}]}, {"tasks": [{"file": "/a/u"}]}, "tasks.0.file"),
        (
            {"tasks": [{"file": "/a/t", "columns": {"prompt": "q"}}]},
            {"tasks": [{"file": "/b/t", "columns": {"prompt": "q"}}]},
            "tasks.0.file",
        ),
    ],
    ids=str,
)
def test_a_folder_may_move_with_its_files_and_no_other_file_takes_their_place(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], key: str | None
) -> None:
    least = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}

    def run(keys: dict[str, Any]) -> RunConfig:
        tasks = {} if "tasks" in keys else {"task_file": "/a/t.jsonl"}
        return RunConfig.model_validate(least | tasks | keys)

    earlier = EarlierRun(directory=RunDirectory(tmp_path), config=run(before))
    if key is None:
        earlier._check_same(run(now))
        return
    with pytest.raises(InvalidInput) as problem:
        earlier._check_same(run(now))
    assert problem.value.field == key


async def test_many_and_long_differences_are_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        first = await run_to_end(cluster, cluster.run_config(steps=1))
        monkeypatch.setattr(earlier_run, "_MOST_CHANGES", 2)
        differs = cluster.run_config(steps=2, model="m" * 500, seed=1, group_size=5, batch_groups=5)
        problem = await refused(cluster, differs, resume=first.run_id)
        lines = problem.fix.splitlines()[1:-1]
        assert lines[0] == f'  model: "tiny" -> "{"m" * 56}...'
        assert lines[1:] == ["  seed: 0 -> 1", "  and 2 more"]


async def test_last_is_the_run_of_the_same_name_that_was_written_last(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        config = cluster.run_config(steps=1)
        problem = await refused(cluster, config, resume="last")
        assert problem.fix == f"There is no run of test under {config.run_root}."
        ended = [await run_to_end(cluster, config) for _ in range(2)]
        other = await run_to_end(cluster, cluster.run_config(steps=1, name="other"))
        for number, status in enumerate([ended[1], ended[0], other], start=1):
            os.utime(RunDirectory(status.run_dir).ledger, (1e9 + number, 1e9 + number))
        status = await run_to_end(cluster, cluster.run_config(steps=2), resume="last")
        assert (status.run_id, status.step) == (ended[0].run_id, 2)


def write_checkpoint(status: RunStatus, step: int) -> Path:
    """A file of a checkpoint, which no fake trainer writes."""
    folder = Path(status.run_dir) / "checkpoints" / f"step-{step:08d}"
    (folder / "model").mkdir(parents=True)
    (folder / ".metadata").write_text("where the tensors are")
    (folder / "model" / "config.json").write_text("{}")
    return folder


async def test_a_branch_is_a_new_run_with_its_own_ledger_and_the_checkpoints_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        first = await stopped(cluster)
        before = rows(first)
        for step in (2, 3):
            write_checkpoint(first, step)
        (Path(first.run_dir) / "checkpoints" / ".writing-step-00000004").mkdir()
        config = cluster.run_config(steps=2, seed=9, schedule={"preset": "sync"})
        runs = Runs(cluster.config, lambda: cluster.peers)
        branch = await runs.start(RunRequest(config=config, branch=first.run_id))
        async with asyncio.timeout(300):
            status = await runs.ended(branch.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, 2), status.detail
        assert status.run_id != first.run_id
        assert rows(first) == before
        assert [row[0] for row in rows(status)] == list(range(1, len(rows(status)) + 1))
        origin = Path(status.run_dir) / "origin"
        assert cluster.trainer.starts[-1].origin == str(origin)
        assert sorted(one.name for one in origin.iterdir()) == ["step-00000002", "step-00000003"]
        shutil.rmtree(first.run_dir)
        assert (origin / "step-00000003" / ".metadata").read_text() == "where the tensors are"
        again = await run_to_end(cluster, changed(status, steps=3), resume=status.run_id)
        assert (again.state, again.step) == (RunState.FINISHED, 3)
        assert cluster.trainer.starts[-1].origin == str(origin)


async def test_a_branch_of_a_branch_begins_where_that_began_while_it_has_no_checkpoint(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        first = await run_to_end(cluster, cluster.run_config(steps=1))
        assert cluster.trainer.starts[-1].origin == ""
        write_checkpoint(first, 1)
        runs = Runs(cluster.config, lambda: cluster.peers)
        ids = []
        for _ in range(2):
            request = RunRequest(config=cluster.run_config(steps=1), branch="last")
            ids.append((await runs.start(request)).run_id)
            async with asyncio.timeout(300):
                status = await runs.ended(ids[-1])
        assert len({first.run_id, *ids}) == 3
        assert [one.name for one in (Path(status.run_dir) / "origin").iterdir()] == [
            "step-00000001"
        ]


async def test_what_a_branch_cannot_begin_with_is_refused_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        config = cluster.run_config(steps=1)
        first = await run_to_end(cluster, config)
        problem = await refused(cluster, config, branch=first.run_id)
        assert (problem.field, problem.value) == ("branch", first.run_id)
        assert "no checkpoint yet" in problem.fix
        problem = await refused(cluster, config, branch="test-1")
        assert (problem.field, problem.value) == ("branch", "test-1")
        assert [one.name for one in cluster.run_root.iterdir()] == [first.run_id]
    with pytest.raises(InvalidInput, match="give resume, which goes on with a run, or branch"):
        RunRequest.from_data({"config": config, "resume": "a", "branch": "b"}, source="run")
