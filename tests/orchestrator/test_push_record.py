import json
from pathlib import Path

from services.orchestrator.observers.timeline import PushRecord, Timeline
from services.protocol.weights.version_ledger import VersionOutcome, VersionRecord


def told(*times: float) -> tuple[VersionRecord, ...]:
    outcomes = (VersionOutcome(replica_id="a", at=at, error=None, seconds=0.5) for at in times)
    record = VersionRecord(
        version=1,
        train_step=1,
        digest="",
        model="",
        base=0,
        published_at=None,
        commits=1,
        failures=0,
        outcomes=tuple(outcomes),
    )
    return (record,)


def test_a_push_is_written_once_and_one_of_an_earlier_run_never(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path)
    record = PushRecord(timeline, told(990.0))
    record.write(told(990.0, 1001.0))
    record.write(told(990.0, 1001.0, 1002.0))
    timeline.close()
    assert [json.loads(line)["end"] for line in path.read_text().splitlines()] == [1001.0, 1002.0]
