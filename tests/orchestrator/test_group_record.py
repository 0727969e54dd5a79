"""What is written of sample groups token by token costs the run no time."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.core.results import GroupResult
from services.orchestrator.observers.group_record import GroupRecord
from services.orchestrator.run_folder.journal import Journal
from services.protocol.run.orchestrator import RunState
from services.protocol.trainer import CheckpointReport, TrainReport
from tests.orchestrator.fakes import run_to_end, world


def report(step: int) -> TrainReport:
    return TrainReport(
        step=step,
        policy_version=step,
        tokens=3,
        metrics={},
        seconds={},
        checkpoint=CheckpointReport(),
    )


async def test_tokens_are_written_beside_the_event_loop_in_order_and_to_the_last(
    tmp_path: Path, result: GroupResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, add = threading.Event(), Journal.add

    def slowly(journal: Journal, line: Any) -> None:
        assert may_write.wait(300), "the event loop that lets it was held up"
        add(journal, line)

    monkeypatch.setattr(Journal, "add", slowly)
    record = GroupRecord(tmp_path / "groups.jsonl", tmp_path / "tokens.jsonl")
    record.write_tokens([result, result], report(1))
    waiting = asyncio.create_task(record.tokens_written())
    await asyncio.wait({waiting}, timeout=0.01)
    waiting.cancel()  # as a run that is stopped does
    may_write.set()
    await record.tokens_written()
    record.write_tokens([result], report(2))
    await record.close()
    lines = (tmp_path / "tokens.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 1, 2]


@pytest.mark.parametrize(("steps", "state"), [(1, RunState.FINISHED), (2, RunState.FAILED)])
@pytest.mark.usefixtures("no_drawing")
async def test_tokens_that_cannot_be_written_keep_no_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, state: RunState
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(GroupRecord, "_write_tokens", broken)
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(steps=steps))
    assert status.state is state
    assert status.summary is not None
    assert ("a defect" in status.detail) == (state is RunState.FAILED)
