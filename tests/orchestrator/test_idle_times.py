"""What is waited for, and whether long answers get their share."""

import pytest

from services.observability.metrics import RunMetrics
from services.orchestrator.core import idle_times
from services.orchestrator.core.idle_times import IdleTimes, idle_slots
from services.orchestrator.core.length_bias import LengthBias
from services.orchestrator.core.schedule import Slots


def slots(**used: int) -> Slots:
    stages = ("sampling", "scoring", "ready", "training", "updating", "free")
    return Slots(**{stage: used.get(stage, 0) for stage in stages})


def test_idle_time_counts_for_what_the_beginning_of_each_interval_showed(monkeypatch) -> None:
    clock = iter([10.0, 12.0, 15.0])
    monkeypatch.setattr(idle_times.time, "monotonic", lambda: next(clock))
    idle = IdleTimes("run")
    idle.look(trainer="rollout", slots=slots(sampling=3, ready=1), capacity=4)
    idle.look(trainer=None, slots=slots(training=4), capacity=4)
    idle.look(trainer="score", slots=slots(scoring=4), capacity=4)
    assert idle.take() == {
        "trainer": {"rollout": 2.0},
        "rollout": {"batch": 0.5, "trainer": 3.0},
    }
    assert idle.take() == {"trainer": {}, "rollout": {}}
    assert idle.shares["trainer"] == {"rollout": 0.4}


def test_the_metric_grows_within_a_step_once_a_second_and_to_what_the_step_took(
    monkeypatch,
) -> None:
    clock = iter([10.0, 10.5, 11.5, 12.0])
    monkeypatch.setattr(idle_times.time, "monotonic", lambda: next(clock))
    counted: list[tuple[str, float]] = []

    def count(seconds: float, tags: dict[str, str]) -> None:
        assert tags == {"run": "run", "side": "trainer", "cause": tags["cause"]}
        counted.append((tags["cause"], seconds))

    monkeypatch.setattr(RunMetrics.idle, "inc", count)
    idle = IdleTimes("run")
    for cause in ("rollout", "score", "score"):
        idle.look(trainer=cause, slots=slots(sampling=4), capacity=4)
    assert counted == [("rollout", 0.5), ("score", 1.0)]
    idle.look(trainer=None, slots=slots(sampling=4), capacity=4)
    assert len(counted) == 2, "half a second later"
    assert idle.take() == {"trainer": {"rollout": 0.5, "score": 1.5}, "rollout": {}}
    assert counted[2:] == [("rollout", 0.0), ("score", 0.5)]


def test_slots_that_sample_nothing_are_told_by_what_they_wait_for() -> None:
    used = slots(sampling=2, scoring=1, ready=1, training=3, updating=1)
    assert idle_slots(used, 8) == {
        "weights": 1 / 8,
        "trainer": 3 / 8,
        "score": 1 / 8,
        "batch": 1 / 8,
    }
    assert idle_slots(slots(sampling=1), 4) == {"admission": 0.75}
    assert idle_slots(slots(sampling=6, training=4), 6) == {}, "sampled beside the training"


def test_giving_up_long_answers_is_seen_as_length_bias_and_alarmed_once() -> None:
    lengths = LengthBias(settled_after=4)
    assert lengths.running is None
    for length in (10, 10, 10, 10):
        lengths.sampled(length)
    lengths.consumed([10, 10])
    assert (lengths.running, lengths.alarm) == (pytest.approx(0.0), False)
    lengths.cut_off(4, [40])
    lengths.consumed([10, 10])
    assert lengths.running == pytest.approx(10 / 25 - 1)
    assert (lengths.alarm, lengths.alarm) == (True, False)
    assert lengths.take_step() == 10.0
    assert lengths.take_step() is None
