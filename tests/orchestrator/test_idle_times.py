"""What is waited for, and whether long answers get their share."""

import pytest

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
    idle = IdleTimes()
    idle.look(trainer="rollout", slots=slots(sampling=3, ready=1), capacity=4)
    idle.look(trainer=None, slots=slots(training=4), capacity=4)
    idle.look(trainer="score", slots=slots(scoring=4), capacity=4)
    assert idle.take() == {
        "trainer": {"rollout": 2.0},
        "rollout": {"batch": 0.5, "trainer": 3.0},
    }
    assert idle.take() == {"trainer": {}, "rollout": {}}
    assert idle.shares["trainer"] == {"rollout": 0.4}


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
