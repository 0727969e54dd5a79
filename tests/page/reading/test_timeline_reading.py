from pathlib import Path

import pytest

from services.json_lines import JsonLines
from services.orchestrator.core.schedule import Slots
from services.orchestrator.observers.timeline import Timeline
from services.page.reading.timeline_reading import TimelineReading


def reading(path: Path) -> TimelineReading:
    return TimelineReading(JsonLines(path.with_name("timeline.1.jsonl")), JsonLines(path))


def lanes(path: Path, bins: int = 10) -> dict[str, dict[str, list[float]]]:
    found = reading(path).window(None, None, bins)["lanes"]
    return {one["lane"]: one["busy"] for one in found}


def test_busy_is_the_mean_number_at_work_whatever_overlaps(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.span("replica a", "generate", 1000.0, 1010.0, answers=4)
    timeline.span("replica a", "generate", 1004.5, 1006.0, answers=2)
    timeline.close()
    expected = [4, 4, 4, 4, 5, 6, 4, 4, 4, 4]
    assert lanes(tmp_path / "timeline.jsonl")["replica a"]["generate"] == pytest.approx(expected)


def test_a_wait_has_its_cause_and_a_push_its_pause(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.span("trainer", "wait", 100.0, 105.0, cause="score")
    timeline.span("replica a", "push", 106.0, 110.0, version=3, paused_s=1.0)
    timeline.close()
    found = lanes(tmp_path / "timeline.jsonl")
    assert found["trainer"]["wait: score"] == pytest.approx([1] * 5 + [0] * 5)
    assert found["replica a"]["push"] == pytest.approx([0] * 6 + [1] * 4)
    assert found["replica a"]["pause"] == pytest.approx([0] * 9 + [1])


def test_what_slots_were_used_for_says_why_nothing_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path)
    used = {"sampling": 0, "scoring": 0, "ready": 1, "training": 0, "updating": 3, "free": 0}
    timeline.span("slots", "slots", 100.0, 100.0, **vars(Slots(**used)))
    timeline.span("trainer", "train", 100.0, 110.0, step=1)
    timeline.close()
    slots = reading(path).window(None, None, 10)["slots"]
    assert set(slots["why"]) == {"weights"}
    assert slots["columns"]["updating"] == [3] * 10


def test_a_full_file_gives_way_and_the_newest_stays(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path, max_bytes=2000)
    for second in range(100):
        timeline.span("trainer", "train", second, second + 1.0, step=second)
    timeline.close()
    sizes = [one.stat().st_size for one in tmp_path.glob("timeline*.jsonl")]
    assert sum(sizes) < 2 * 2100
    steps = [step for _, step in reading(path).window(None, None, 10)["steps"]]
    assert steps[-1] == 99
    assert steps == sorted(steps)


def test_spans_after_a_torn_line_are_read(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_text('{"lane": "trainer", "kind": "tra')
    timeline = Timeline(path)
    timeline.span("trainer", "train", 1.0, 2.0, step=1)
    timeline.close()
    assert lanes(path)["trainer"]["train"] == pytest.approx([1] * 10)


def test_a_disk_that_refuses_costs_spans_and_not_the_run(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "no such folder" / "timeline.jsonl")
    timeline.span("trainer", "train", 1.0, 2.0)
    timeline.span("trainer", "train", 2.0, 3.0)
    timeline.close()
    assert timeline._journal.dropped == 2
