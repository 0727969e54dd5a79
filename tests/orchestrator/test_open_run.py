"""A run outlives its orchestrator: the next one goes on with it, unless it was asked to end."""

import asyncio
import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from services.cluster_kv import ClusterValue
from services.ledger.ledger import LEDGER_FILE, Ledger
from services.ledger.writer_lease import LEASE_S, lease_path
from services.orchestrator.lifecycle.open_run import OpenRun
from services.orchestrator.lifecycle.runs import RunActive, Runs
from services.protocol.errors import NotReady
from services.protocol.run.orchestrator import RunRequest, RunState, RunStatus
from tests.filling import fill
from tests.mounts import pretend_mounts
from tests.orchestrator.fakes import World, world, write_tasks

pytestmark = pytest.mark.usefixtures("no_drawing")
STEPS = 5


class Note(ClusterValue):
    """In place of Ray's head."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.away = False

    async def write(self, text: str) -> None:
        self._answer()
        self.text = text

    async def read(self) -> str | None:
        self._answer()
        return self.text

    async def erase(self) -> None:
        self._answer()
        self.text = None

    def _answer(self) -> None:
        if self.away:
            raise NotReady("the head is away")


def orchestrator(cluster: World, note: Note) -> Runs:
    return Runs(cluster.config, lambda: cluster.peers, OpenRun(note, returns=2))


async def cut_off(cluster: World, note: Note) -> str:
    """Start a run and shut its orchestrator down in the middle of it; the run's id."""
    runs = orchestrator(cluster, note)
    run_id = (await runs.start(RunRequest(config=cluster.run_config(steps=STEPS)))).run_id
    async with asyncio.timeout(300):
        while runs.get(run_id).status().step < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await runs.close()
    return run_id


async def test_the_next_orchestrator_goes_on_with_the_run_that_was_open(tmp_path: Path) -> None:
    note = Note()
    async with world(tmp_path) as cluster:
        run_id = await cut_off(cluster, note)
        after = orchestrator(cluster, note)
        await after.resume_open_run()
        async with asyncio.timeout(300):
            status = await after.ended(run_id)
        assert (status.state, status.step) == (RunState.FINISHED, STEPS)
        assert status.ledger.in_flight == 0
        assert note.text is None


async def test_the_next_orchestrator_offers_unfinished_episodes_by_the_same_keys(
    tmp_path: Path,
) -> None:
    sources = [
        {"file": str(write_tasks(tmp_path / "a.jsonl", heldout=0)), "environment": "external"},
        {"file": str(write_tasks(tmp_path / "b.jsonl", train=0))},
    ]
    note, offered = Note(), list[list[str]]()
    async with world(tmp_path) as cluster:
        runs, sessions = orchestrator(cluster, note), cluster.router.sessions
        keys, sessions.played_every = sessions.keys, 4
        await runs.start(RunRequest(config=cluster.run_config(task_file=None, tasks=sources)))
        for _ in range(2):
            async with asyncio.timeout(300):
                while len(keys) < 16 or len(sessions.scored) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            playing = set(sessions.open)
            await runs.close()
            assert set(sessions.open) == playing, "their agents play on"
            offered.append(sorted(keys))
            keys.clear()
            sessions.scored.clear()
            runs = orchestrator(cluster, note)
            await runs.resume_open_run()
        await runs.close()
    assert offered[0] == offered[1]


async def test_a_run_stays_paused_until_a_client_wants_it_to_go_on(tmp_path: Path) -> None:
    note = Note()
    async with world(tmp_path) as cluster:
        config, before = cluster.run_config(steps=STEPS), orchestrator(cluster, note)
        run_id = (await before.start(RunRequest(config=config))).run_id
        before.active(run_id).pause()
        await before.close()
        after = orchestrator(cluster, note)
        await after.resume_open_run()
        async with asyncio.timeout(300):
            while after.get(run_id).status().state is not RunState.PAUSED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await after.stop(run_id)
        by_hand = orchestrator(cluster, note)
        await by_hand.start(RunRequest(config=config, resume=run_id))
        async with asyncio.timeout(300):
            status = await by_hand.ended(run_id)
        assert (status.state, status.step) == (RunState.FINISHED, STEPS)


async def test_a_run_whose_orchestrator_died_elsewhere_comes_back_when_its_lease_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_mounts(monkeypatch, tmp_path / "mountinfo", "/ nfs4 vers=4.2")
    note, sleep = Note(), asyncio.sleep
    async with world(tmp_path) as cluster:
        run_id = await cut_off(cluster, note)
        run_dir = Path(cluster.run_config().run_root) / run_id
        lease = lease_path(run_dir / LEDGER_FILE)
        lease.write_text(json.dumps({"host": "far", "machine": "far", "pid": "7"}))

        async def pass_over(seconds: float) -> None:
            if seconds == LEASE_S:
                os.utime(lease, (0, 0))
            else:
                await sleep(seconds)

        monkeypatch.setattr(asyncio, "sleep", pass_over)
        after = orchestrator(cluster, note)
        await after.resume_open_run()
        async with asyncio.timeout(300):
            status = await after.ended(run_id)
        assert (status.state, status.step) == (RunState.FINISHED, STEPS), status.detail
        lines = (run_dir / "log.jsonl").read_text().splitlines()
        opened = [one for one in map(json.loads, lines) if one["event"] == "ledger_opened"]
        assert {(one["file_system"], one["journal_mode"]) for one in opened} == {
            ("nfs4", "persist")
        }


async def test_a_run_that_another_orchestrator_took_over_fails_and_stays_the_others(
    tmp_path: Path,
) -> None:
    note = Note()
    async with world(tmp_path) as cluster:
        runs = orchestrator(cluster, note)
        started = await runs.start(RunRequest(config=cluster.run_config(steps=STEPS)))
        path = Path(started.run_dir) / LEDGER_FILE
        async with asyncio.timeout(300):
            while runs.get(started.run_id).status().step < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with closing(Ledger(path)) as other:
                before = other.counts()
                status = await runs.ended(started.run_id)
                assert other.counts() == before, "the first one wrote nothing more"
        assert status.state is RunState.FAILED
        assert status.detail.startswith(f"{path} has another writer")
        assert note.text is not None, "it is the other's note"
        assert None not in cluster.bus.lags, "so is the staleness bound"


async def test_a_run_that_is_taken_over_in_a_train_step_leaves_the_staleness_bound(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, stop_timeout_s=0.1) as cluster:
        cluster.trainer.hold = asyncio.Event()
        runs = orchestrator(cluster, Note())
        started = await runs.start(RunRequest(config=cluster.run_config(steps=STEPS)))
        async with asyncio.timeout(300):
            await cluster.trainer.entered.wait()
        with closing(Ledger(Path(started.run_dir) / LEDGER_FILE)):
            await runs.close()
        assert cluster.bus.lags == [0]


async def waiting(runs: Runs, run_id: str) -> RunStatus:
    """The run's status once it waits for room."""
    await runs.resume_open_run()
    async with asyncio.timeout(300):
        while runs.get(run_id).status().state is not RunState.DISK_FULL:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return runs.get(run_id).status()


async def test_an_orchestrator_that_starts_on_a_full_disk_disk_full_and_goes_on(
    small_disk: Path,
) -> None:
    note = Note()
    async with world(small_disk) as cluster:
        run_id = await cut_off(cluster, note)
        filling = fill(small_disk)
        after = orchestrator(cluster, note)
        status = await waiting(after, run_id)
        assert "no disk space for the ledger: 0 bytes are free" in status.detail
        assert [one.run_id for one in after.list()] == [run_id]
        with pytest.raises(NotReady, match="no disk space for the ledger"):
            after.active(run_id)
        with pytest.raises(RunActive):
            await after.start(RunRequest(config=cluster.run_config(), resume=run_id))
        ended = asyncio.create_task(after.ended(run_id))
        filling.unlink()
        async with asyncio.timeout(300):
            status = await ended
        assert (status.state, status.step) == (RunState.FINISHED, STEPS)
        assert note.text is None


@pytest.mark.parametrize("asked", [False, True], ids=["shut down", "stopped"])
async def test_a_run_that_waits_to_come_back_ends_as_any_other(
    small_disk: Path, asked: bool
) -> None:
    note = Note()
    async with world(small_disk) as cluster:
        run_id = await cut_off(cluster, note)
        filling = fill(small_disk)
        after = orchestrator(cluster, note)
        await waiting(after, run_id)
        async with asyncio.timeout(300):
            await (after.stop(run_id) if asked else after.close())
        assert after.get(run_id).status().state is RunState.STOPPED
        assert (note.text is None) == asked
        filling.unlink()
        again = orchestrator(cluster, note)
        await again.resume_open_run()
        assert [one.run_id for one in again.list()] == [run_id] * (not asked)
        await again.close()


async def test_a_run_that_finds_no_room_to_come_back_in_time_fails_with_the_fix(
    small_disk: Path,
) -> None:
    note = Note()
    async with world(small_disk, disk_full_timeout_s=0.1) as cluster:
        run_id = await cut_off(cluster, note)
        fill(small_disk)
        after = orchestrator(cluster, note)
        await after.resume_open_run()
        async with asyncio.timeout(300):
            status = await after.ended(run_id)
        assert status.state is RunState.FAILED
        assert "no disk space for the ledger in 0.1 s: 0 bytes are free" in status.detail
        assert f"--resume {run_id}`" in status.detail
        assert note.text is None


async def test_a_run_that_was_stopped_does_not_come_back(tmp_path: Path) -> None:
    note = Note()
    async with world(tmp_path) as cluster:
        runs = orchestrator(cluster, note)
        started = await runs.start(RunRequest(config=cluster.run_config(steps=STEPS)))
        assert note.text is not None
        await runs.stop(started.run_id)
        assert note.text is None
        after = orchestrator(cluster, note)
        await after.resume_open_run()
        assert after.list() == []


async def test_a_run_that_keeps_killing_its_orchestrator_is_given_up(tmp_path: Path) -> None:
    note = Note()
    async with world(tmp_path) as cluster:
        run_id = await cut_off(cluster, note)
        opened = OpenRun(note, returns=2)
        for _ in range(2):
            request = await opened.again()
            assert request is not None
            assert request.resume == run_id
        assert await opened.again() is None
        assert note.text is None


async def test_a_run_that_moves_on_comes_back_as_often_as_need_be(tmp_path: Path) -> None:
    note = Note()
    async with world(tmp_path) as cluster:
        await cut_off(cluster, note)
        opened = OpenRun(note, returns=1)
        for _ in range(3):
            assert await opened.again() is not None
            assert note.text is not None
            # As if a train step had closed since.
            note.text = json.dumps(json.loads(note.text) | {"step": 0})


class SlowNote(Note):
    """A head that takes its time: it writes, or erases, once that may be."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write, self.may_erase = asyncio.Event(), asyncio.Event()

    async def write(self, text: str) -> None:
        await self.may_write.wait()
        await super().write(text)

    async def erase(self) -> None:
        await self.may_erase.wait()
        await super().erase()


async def over(runs: Runs) -> None:
    """Until the newest run shows its end; its task may go on."""
    async with asyncio.timeout(300):
        while not runs.list() or runs.list()[-1].state is not RunState.FINISHED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_run_that_ends_before_it_is_noted_does_not_come_back(tmp_path: Path) -> None:
    note = SlowNote()
    note.may_erase.set()
    async with world(tmp_path) as cluster:
        runs = orchestrator(cluster, note)
        starting = asyncio.create_task(runs.start(RunRequest(config=cluster.run_config(steps=1))))
        await over(runs)
        note.may_write.set()
        await runs.ended((await starting).run_id)
        assert note.text is None


async def test_the_end_of_a_run_does_not_erase_the_note_of_the_next(tmp_path: Path) -> None:
    note = SlowNote()
    note.may_write.set()
    async with world(tmp_path) as cluster:
        runs = orchestrator(cluster, note)
        await runs.start(RunRequest(config=cluster.run_config(steps=1)))
        await over(runs)
        starting = asyncio.create_task(runs.start(RunRequest(config=cluster.run_config(steps=99))))
        await asyncio.wait({starting}, timeout=0.5)  # time enough to be noted first
        note.may_erase.set()
        status, noted = await starting, note.text
        await runs.close()
        assert noted is not None
        assert status.run_id in noted


async def test_a_note_that_cannot_be_used_keeps_no_orchestrator_from_starting(
    tmp_path: Path,
) -> None:
    note = Note()
    note.text = '{"request": 1'
    async with world(tmp_path) as cluster:
        runs = orchestrator(cluster, note)
        await runs.resume_open_run()
        assert runs.list() == []


async def test_a_head_that_is_away_costs_no_run(tmp_path: Path) -> None:
    note = Note()
    note.away = True
    async with world(tmp_path) as cluster:
        runs = orchestrator(cluster, note)
        await runs.resume_open_run()
        started = await runs.start(RunRequest(config=cluster.run_config(steps=1)))
        async with asyncio.timeout(300):
            status = await runs.ended(started.run_id)
        assert status.state is RunState.FINISHED
