from pathlib import Path

import pytest

from services.json_lines import JsonLines
from services.orchestrator.core.schedule import Slots
from services.orchestrator.observers.timeline import Timeline
from services.page.reading.timeline_reading import TimelineReading
from services.page.reading.waiting import waited_most


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


def test_from_far_a_part_holds_whole_steps_and_from_near_every_span_is_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path)
    for step in range(300):
        timeline.span("trainer", "wait", step, step + 0.4, cause="rollout")
        timeline.span("trainer", "train", step + 0.4, step + 1.0, step=step)
    timeline.close()
    far = reading(path).window(None, None, 200)
    (lane,) = far["lanes"]
    assert "spans" not in lane
    assert lane["share"]["train"] == pytest.approx([0.6] * 150, abs=0.01), "no barcode"
    near = reading(path).window(100.0, 104.0, 200)["lanes"][0]["spans"]
    assert near["train"][1] == [pytest.approx(100.4), pytest.approx(101.0), 1.0]
    assert len(near["wait: rollout"]) == 5


def test_a_share_counts_work_that_overlaps_once(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path)
    for begin, end in ((0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (8.0, 10.0)):
        timeline.span("replica a", "generate", begin, end, answers=3)
    timeline.close()
    (lane,) = reading(path).window(0.0, 10.0, 10)["lanes"]
    assert lane["share"]["generate"] == pytest.approx([1] * 5 + [0] * 3 + [1] * 2)


def test_one_sentence_says_for_what_a_run_waited_most(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path)
    timeline.span("evaluation", "evaluate", 0.0, 10.0)
    timeline.span("trainer", "wait", 10.0, 60.0, cause="rollout")
    timeline.span("trainer", "wait", 60.0, 70.0, cause="score")
    timeline.span("trainer", "train", 70.0, 100.0, step=1)
    timeline.close()
    whole = reading(path).window(None, None, 100)
    assert whole["idle"]["trainer"] == pytest.approx(
        {"rollout": 0.5, "score": 0.1, "evaluation": 0.1}
    )
    assert whole["waited_most"] == (
        "The trainer waited 70% of this time, most of all for rollouts: for 50%, sample groups "
        "were still being sampled."
    )
    end = reading(path).window(75.0, 95.0, 100)
    assert end["waited_most"] == "The trainer was at work 100% of this time."


def test_a_trainer_that_is_busy_leaves_the_idle_slots_to_tell() -> None:
    said = waited_most(0.95, {"score": 0.05}, {"trainer": 0.4, "batch": 0.1})
    assert said == (
        "The trainer was at work 95% of this time; of the rollout's slots, 40% were idle because "
        "their groups were being trained."
    )


def test_of_a_time_before_the_trainer_worked_nothing_is_said(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.span("replica a", "generate", 0.0, 10.0)
    timeline.close()
    window = reading(tmp_path / "timeline.jsonl").window(None, None, 10)
    assert (window["waited_most"], window["at_work"], window["waits"]) == ("", 0.0, {})


def test_the_turn_around_a_train_step_is_no_work_besides_it(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.span("trainer", "train", 2.0, 5.0, step=1)
    timeline.span("turn", "turn", 1.0, 6.0)
    timeline.span("trainer", "wait", 6.0, 10.0, cause="rollout")
    timeline.span("evaluation", "evaluate", 9.0, 10.0)
    timeline.close()
    window = reading(tmp_path / "timeline.jsonl").window(0.0, 10.0, 10)
    assert window["at_work"] == pytest.approx(0.3)
    assert [one["lane"] for one in window["lanes"]] == ["trainer", "turn", "evaluation"]


def test_slots_are_means_over_the_time_and_not_what_they_were_at_one_moment(
    tmp_path: Path,
) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path)
    none = {"sampling": 0, "scoring": 0, "ready": 0, "training": 0, "updating": 0, "free": 0}
    timeline.span("slots", "slots", 0.0, 0.0, **none | {"sampling": 4})
    timeline.span("slots", "slots", 7.5, 7.5, **none | {"scoring": 4})
    timeline.span("trainer", "train", 0.0, 10.0, step=1)
    timeline.close()
    slots = reading(path).window(None, None, 10)["slots"]
    assert slots["columns"]["sampling"] == pytest.approx([4] * 7 + [2, 0, 0])
    assert slots["idle"]["score"] == pytest.approx([0] * 7 + [0.5, 1, 1])


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
