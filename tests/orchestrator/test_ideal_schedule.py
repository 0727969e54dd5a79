"""The benchmark's ideal schedule, on traces for which it can be worked out by hand."""

import pytest

from benchmarks.schedules.hardware import Trace
from millrace_tools.simulation.hardware import Hardware, Setup, Work
from millrace_tools.simulation.oracle import ideal
from services.protocol.run.schedule import ScheduleConfig


class Told(Trace):
    """Groups of one answer each, of these lengths, graded in no time."""

    def __init__(self, *tokens: int, score_s: float = 0.0) -> None:
        self.works = [Work(tokens=(one,), score_s=(score_s,)) for one in tokens]

    def group(self, group_id: int) -> Work:
        return self.works[group_id - 1]


def seconds(schedule: ScheduleConfig, trace: Trace, *, steps: int, sequences: int = 2) -> float:
    hardware = Hardware(replicas=1, slots=sequences, sandboxes=9, train_s=10.0, push_s=1.0)
    setup = Setup(schedule=schedule, batch_groups=2, steps=steps, hardware=hardware, trace=trace)
    return ideal(setup)[0].seconds


def test_sync_adds_up_longest_answer_scores_train_step_and_push() -> None:
    trace = Told(5, 30, 20, 7, score_s=2.0)
    assert seconds(ScheduleConfig(preset="sync"), trace, steps=2) == (32 + 11) + (22 + 10)


def test_one_step_off_samples_a_batch_while_the_one_before_is_trained() -> None:
    trace = Told(30, 30, 30, 30, 30, 30)
    # Two at a time: the second batch is sampled from 30 to 60, the third from 60 to 90.
    assert seconds(ScheduleConfig(preset="one_step_off"), trace, steps=3) == 100


def test_a_stream_interrupts_what_is_long_and_ends_it_first_under_the_next_weights() -> None:
    trace = Told(100, 10, 10, 50)
    # A full batch at 20; sampling stands still until 31, when 80 tokens of the first are left.
    stream = ScheduleConfig(preset="stream")
    assert seconds(stream, trace, steps=2) == 31 + 80 + 10


def test_a_batch_waits_for_a_group_that_no_later_one_may_hold() -> None:
    trace = Told(100, *[5] * 20)
    partial = ScheduleConfig(preset="partial", max_staleness=1)
    assert seconds(partial, trace, steps=3) >= 100 + 10


@pytest.mark.parametrize("preset", ["sync", "one_step_off", "partial", "async"])
def test_no_ideal_is_faster_than_its_tokens_and_its_train_steps(preset: str) -> None:
    trace = Trace(sigma=0.9, score_s=0.0, group_size=1, seed=3)
    work = sum(trace.group(group).tokens[0] for group in range(1, 13))
    took = seconds(ScheduleConfig(preset=preset), trace, steps=6)
    assert took >= max(work / 2 + 10, 60)
