"""The schedule alone: random orders of events, no clock and no tasks."""

import random

import pytest

from services.orchestrator.core.schedule import Schedule, Selection
from services.protocol.run.schedule import ScheduleConfig
from tests.orchestrator.plain_schedule import CheckedSchedule

PRESETS = [
    ScheduleConfig(preset="sync"),
    ScheduleConfig(preset="one_step_off"),
    ScheduleConfig(preset="async", max_staleness=2),
    ScheduleConfig(preset="async", max_staleness=5),
    ScheduleConfig(preset="stream"),
    ScheduleConfig(preset="stream", max_staleness=1, on_stale="wait"),
    ScheduleConfig(preset="partial"),
    ScheduleConfig(preset="partial", oversample=1.0, on_stale="withhold"),
    ScheduleConfig(preset="async", max_staleness=1, on_stale="mask"),
]
BATCH = 3


def name(config: ScheduleConfig) -> str:
    return f"{config.preset}-{config.max_staleness}-{config.on_stale}"


class Simulation:
    """Random groups finish in random order on replicas that lag behind by a random time."""

    def __init__(self, config: ScheduleConfig, seed: int, *, steps: int) -> None:
        self.chance = random.Random(seed)
        self.config = config
        self.schedule = CheckedSchedule(config, batch_groups=BATCH)
        self.steps = steps
        self.version = 1
        self.live = 1
        self.next_id = 0
        self.sampled: dict[int, int] = {}
        self.rolling: list[int] = []
        self.scoring: list[int] = []
        self.batches: list[Selection] = []
        self.closed: dict[int, str] = {}
        self.most_open = 0

    def run(self) -> None:
        moves = [self.admit, self.fail, self.go_live, self.train]
        moves += 2 * [self.roll_out, self.score]
        moves += 2 * [self.look]
        for _ in range(20_000):
            if len(self.batches) == self.steps:
                return
            self.chance.choice(moves)()
        raise AssertionError(f"stuck after {len(self.batches)} of {self.steps} batches")

    def admit(self) -> None:
        if self.config.max_staleness == 0 and self.live < self.version:
            return
        for _ in range(self.schedule.free_slots(steps_left=self.steps - len(self.batches))):
            self.schedule.admit(self.next_id, self.live)
            self.sampled[self.next_id] = self.live
            self.rolling.append(self.next_id)
            self.next_id += 1
        charged = self.schedule.open_groups
        self.most_open = max(self.most_open, charged)

    def roll_out(self) -> None:
        # A heavy tail: one group in four only finishes when nothing else is left.
        quick = [group for group in self.rolling if group % 4] or self.rolling
        if quick:
            group = self.chance.choice(quick)
            self.rolling.remove(group)
            self.scoring.append(group)
            self.schedule.sampled(group, self.sampled[group], self.live)
            self.schedule.rolled_out(group)

    def score(self) -> None:
        if self.scoring:
            group = self.scoring.pop(self.chance.randrange(len(self.scoring)))
            trainable = self.chance.random() < 0.8
            self.schedule.ready(group, self.sampled[group], trainable=trainable)

    def fail(self) -> None:
        if self.rolling and self.chance.random() < 0.05:
            group = self.chance.choice(self.rolling)
            self.rolling.remove(group)
            self.schedule.close(group)
            self.close(group, "failed")

    def go_live(self) -> None:
        self.live = self.chance.randint(self.live, self.version)
        self.schedule.live(self.live)

    def train(self) -> None:
        for group in self.schedule.overdue(self.version):
            assert self.config.on_stale in ("drop", "mask")
            for groups in (self.rolling, self.scoring):
                if group in groups:
                    groups.remove(group)
            self.schedule.close(group)
            self.close(group, "expired")
        batch = self.schedule.select(self.version)
        if batch is None:
            return
        for group in batch.train + batch.filtered:
            self.close(group, "batch")
        assert batch.min_version == self.version - self.config.max_staleness
        oldest = [max(batch.min_version, self.sampled[group]) for group in batch.train]
        assert batch.staleness == tuple(self.version - version for version in oldest)
        if self.config.on_stale != "mask":
            assert all(self.sampled[group] >= batch.min_version for group in batch.train)
        self.batches.append(batch)
        if batch.train:
            self.version += 1
        self.schedule.published(self.version if batch.train else None)

    def look(self) -> None:
        """Each question must be answered as if all groups were looked at."""
        self.schedule.awaited(self.version)
        self.schedule.lacks_samples(self.version)

    def close(self, group: int, ending: str) -> None:
        assert group not in self.closed
        self.closed[group] = ending


def also_dropping(configs: list[ScheduleConfig]) -> list[ScheduleConfig]:
    return configs + [c.model_copy(update={"on_stale": "drop"}) for c in configs[:4]]


@pytest.mark.parametrize("config", also_dropping(PRESETS), ids=name)
def test_staleness_never_exceeds_the_bound_in_any_order_of_events(config: ScheduleConfig) -> None:
    for seed in range(30):
        simulation = Simulation(config, seed, steps=30)
        simulation.run()
        worst = max((s for batch in simulation.batches for s in batch.staleness), default=0)
        assert worst <= config.max_staleness
        if config.on_stale in ("wait", "withhold"):
            assert "expired" not in simulation.closed.values()


@pytest.mark.parametrize("config", PRESETS, ids=name)
def test_every_group_is_taken_once_and_none_is_left_when_the_steps_are_done(
    config: ScheduleConfig,
) -> None:
    for seed in range(40):
        simulation = Simulation(config, seed, steps=20)
        simulation.run()
        assert set(simulation.closed) == set(range(simulation.next_id))
        assert simulation.schedule.open_groups == 0


@pytest.mark.parametrize("config", PRESETS, ids=name)
def test_no_more_groups_are_open_than_there_are_slots(config: ScheduleConfig) -> None:
    for seed in range(20):
        simulation = Simulation(config, seed, steps=20)
        simulation.run()
        assert BATCH <= simulation.most_open <= config.groups_in_flight(BATCH)


def test_waiting_longer_never_makes_a_slow_group_less_likely_to_be_trained() -> None:
    config = ScheduleConfig(preset="async", max_staleness=3)
    slow, quick = [], []
    for seed in range(30):
        simulation = Simulation(config, seed, steps=40)
        simulation.run()
        ended = simulation.closed
        slow += [ended[g] == "batch" for g in ended if g % 4 == 0]
        quick += [ended[g] == "batch" for g in ended if g % 4]
    # Only the random failures differ, and those hit whoever is open longer.
    assert sum(slow) / len(slow) > sum(quick) / len(quick) - 0.1
    assert sum(slow) / len(slow) > 0.85


def started(config: ScheduleConfig, groups: int, *, version: int = 1) -> Schedule:
    schedule = Schedule(config, batch_groups=BATCH)
    for group in range(groups):
        schedule.admit(group, version)
    return schedule


def test_the_oldest_ready_groups_go_first() -> None:
    schedule = started(PRESETS[2], 9)
    for group in (8, 5, 7, 2, 4):
        schedule.ready(group, 1, trainable=True)
    batch = schedule.select(1)
    assert batch is not None
    assert batch.train == (2, 4, 5)


LOOSE = ScheduleConfig(preset="one_step_off", unfinished="continue")


def test_a_batch_waits_for_the_group_that_would_become_too_stale() -> None:
    schedule = started(LOOSE, 6)
    for group in (1, 2, 3, 4, 5):
        schedule.ready(group, 1, trainable=True)
    assert schedule.select(1) is not None
    schedule.published(2)
    assert schedule.awaited(2) == 1
    assert schedule.select(2) is None
    schedule.ready(0, 1, trainable=True)
    batch = schedule.select(2)
    assert batch is not None
    assert batch.train == (0, 4, 5)
    assert batch.staleness == (1, 1, 1)


def test_a_batch_grows_rather_than_leave_a_group_to_become_too_stale() -> None:
    schedule = Schedule(LOOSE, batch_groups=BATCH)
    for group in range(5):
        schedule.admit(group, 1)
        schedule.ready(group, 1, trainable=True)
    batch = schedule.select(2)
    assert batch is not None
    assert len(batch.train) == 5


def test_slots_are_free_only_when_the_trained_weights_are_live() -> None:
    schedule = started(PRESETS[0], BATCH)
    for group in range(BATCH):
        schedule.ready(group, 1, trainable=True)
    assert schedule.select(1) is not None
    assert schedule.free_slots(steps_left=10) == 0
    schedule.published(2)
    assert schedule.free_slots(steps_left=10) == 0
    schedule.live(1)
    assert schedule.free_slots(steps_left=10) == 0
    schedule.live(2)
    assert schedule.free_slots(steps_left=10) == BATCH


@pytest.mark.parametrize(
    ("config", "free"),
    [
        (ScheduleConfig(), 0),  # what is sampled now would be too old under the next version
        (ScheduleConfig(preset="one_step_off"), BATCH),
        (ScheduleConfig(preset="one_step_off", on_stale="withhold"), 0),
        (ScheduleConfig(preset="async", on_stale="withhold"), BATCH),
    ],
)
def test_while_the_trainer_is_lost_what_its_next_version_may_train_is_admitted(
    config: ScheduleConfig, free: int
) -> None:
    schedule = started(config, BATCH)
    schedule.live(1)
    for group in range(BATCH):
        schedule.ready(group, 1, trainable=True)
    assert schedule.select(1) is not None
    schedule.lost()
    assert min(BATCH, schedule.free_slots(steps_left=10)) == free
    assert schedule.went_back(2) == set(range(BATCH))
    schedule.live(1)
    assert (schedule.free_slots(steps_left=10) > 0) == (free > 0), "nor before it is live"


def test_a_batch_that_trains_nothing_frees_its_slots_at_once() -> None:
    schedule = started(PRESETS[0], BATCH)
    for group in range(BATCH):
        schedule.ready(group, 1, trainable=False)
    batch = schedule.select(1)
    assert batch == Selection(train=(), filtered=(0, 1, 2), staleness=(), min_version=1)
    schedule.published(None)
    assert schedule.free_slots(steps_left=10) == BATCH


def test_a_token_older_than_admission_promised_makes_the_group_overdue_not_trained() -> None:
    schedule = started(PRESETS[0], BATCH, version=4)
    schedule.sampled(1, 3, 4)
    for group in (0, 2):
        schedule.ready(group, 4, trainable=True)
    schedule.ready(1, 3, trainable=True)
    assert schedule.overdue(4) == [1]
    assert schedule.select(4) is None
    schedule.restart(1, 4)
    schedule.ready(1, 4, trainable=True)
    batch = schedule.select(4)
    assert batch is not None
    assert batch.train == (0, 1, 2)


def test_the_last_steps_admit_no_group_that_nobody_will_train() -> None:
    schedule = Schedule(PRESETS[3], batch_groups=BATCH)
    assert schedule.free_slots(steps_left=1) == BATCH
    assert schedule.free_slots(steps_left=100) == BATCH * 6


def test_the_last_batch_of_a_live_run_waits_for_no_conversation() -> None:
    schedule = started(PRESETS[3], BATCH)  # a batch of conversations that do not end
    assert schedule.free_slots(steps_left=1) == 0
    assert schedule.free_slots(steps_left=None) == BATCH * 5


def test_a_batch_that_waits_is_the_oldest_groups_in_the_order_of_admission() -> None:
    schedule = started(PRESETS[1], 6)
    for group in (1, 2, 3, 4, 5):
        schedule.ready(group, 1, trainable=True)
    assert schedule.awaited(1) == 1
    assert schedule.select(1) is None
    schedule.ready(0, 1, trainable=True)
    batch = schedule.select(1)
    assert batch is not None
    assert batch.train == (0, 1, 2)


STREAM = ScheduleConfig(preset="stream")


def test_a_streamed_batch_takes_along_what_is_rolled_out_and_waits_for_its_scores() -> None:
    schedule = started(STREAM, 5)
    for group in range(4):
        schedule.sampled(group, 1, 1)
        schedule.rolled_out(group)
    for group in range(3):
        schedule.ready(group, 1, trainable=True)
    assert schedule.awaited(1) == 1, "later, none of its tokens would be young enough"
    assert schedule.select(1) is None
    schedule.ready(3, 1, trainable=True)
    batch = schedule.select(1)
    assert batch is not None
    assert batch.train == (0, 1, 2, 3)
    assert schedule.unfinished == 1
    assert schedule.overdue(2) == []


def test_sampling_stops_once_as_soon_as_a_batch_is_full_though_it_waits_for_scores() -> None:
    schedule = started(STREAM, 5)
    for group in range(4):
        schedule.sampled(group, 1, 1)
        schedule.rolled_out(group)
    for group in range(2):
        schedule.ready(group, 1, trainable=True)
    assert schedule.interrupted(1) == ()
    schedule.ready(2, 1, trainable=True)
    assert schedule.select(1) is None, "group 3 waits for its scores"
    assert schedule.interrupted(1) == (4,)
    assert schedule.interrupted(1) == ()
    schedule.ready(3, 1, trainable=True)
    assert schedule.select(1) is not None
    schedule.published(2)
    assert schedule.interrupted(2) == ()


def test_a_batch_that_would_train_nothing_stops_no_sampling() -> None:
    schedule = started(STREAM, 5)
    for group in range(4):
        schedule.sampled(group, 1, 1)
        schedule.rolled_out(group)
    for group in range(3):
        schedule.ready(group, 1, trainable=False)
    assert schedule.interrupted(1) == ()


def test_an_interrupted_group_keeps_its_place_and_is_trained_on_what_is_young_enough() -> None:
    schedule = started(STREAM, 4)
    for group in (0, 1, 2):
        schedule.sampled(group, 1, 1)
        schedule.ready(group, 1, trainable=True)
    assert schedule.select(1) is not None
    schedule.published(2)
    schedule.live(2)
    schedule.admit(4, 2)
    schedule.admit(5, 2)
    schedule.sampled(3, 1, 2)
    for group in (3, 4, 5):
        schedule.ready(group, 1 if group == 3 else 2, trainable=True)
    batch = schedule.select(2)
    assert batch is not None
    assert (batch.train, batch.staleness, batch.min_version) == ((3, 4, 5), (0, 0, 0), 2)


def test_a_group_without_a_token_that_is_young_enough_is_given_up() -> None:
    schedule = started(STREAM, 1)
    schedule.sampled(0, 1, 1)
    assert schedule.overdue(2) == [], "it is still being sampled"
    schedule.rolled_out(0)
    assert schedule.overdue(2) == [0]


def test_withholding_admits_no_group_that_would_make_a_batch_grow() -> None:
    config = ScheduleConfig(preset="async", max_staleness=2, on_stale="withhold")
    schedule = started(config, 3)
    for version in (1, 2):
        schedule.live(1)
        for group in range(3):
            schedule.ready(3 * (version - 1) + group, 1, trainable=True)
        assert schedule.select(version) is not None
        for group in range(3):
            schedule.admit(3 * version + group, 1)
        schedule.published(version + 1)
    # Sampled from version 1, only the batch at version 3 may still hold them.
    assert schedule.free_slots(steps_left=10) == 0
    waiting = ScheduleConfig(preset="async", max_staleness=2)
    assert waiting.groups_in_flight(BATCH) == config.groups_in_flight(BATCH) == 9


def test_a_place_is_filled_again_as_often_as_it_may_be() -> None:
    config = ScheduleConfig(dynamic_sampling=True, max_refills=2)
    schedule = started(config, BATCH)
    for group in range(BATCH):
        schedule.ready(group, 1, trainable=group != 1)
    assert schedule.refill(1)
    assert schedule.free_slots(steps_left=10) == 1
    schedule.admit(3, 1)
    assert schedule.refill(3)
    schedule.admit(4, 1)
    assert not schedule.refill(4), "it was the second refill"
    schedule.ready(4, 1, trainable=False)
    batch = schedule.select(1)
    assert batch is not None
    assert (batch.train, batch.filtered) == ((0, 2), (4,))


def test_slots_are_told_by_what_they_are_used_for() -> None:
    schedule = started(PRESETS[2], 8)
    for group in range(4):
        schedule.ready(group, 1, trainable=True)
    schedule.rolled_out(4)
    assert schedule.select(1) is not None
    used = schedule.slots
    assert (used.sampling, used.scoring, used.ready) == (3, 1, 1)
    assert (used.training, used.updating, used.free) == (3, 0, 1)
    schedule.published(2)
    assert (schedule.slots.training, schedule.slots.updating) == (0, 3)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"preset": "sync", "batches_in_flight": 2}, "max_staleness of at least 1"),
        ({"preset": "stream", "on_stale": "wait"}, "unfinished: interrupt keeps tokens"),
        ({"preset": "sync", "oversample": 0.5}, "oversample leaves groups over"),
        ({"preset": "sync", "oversample": 0.5, "on_stale": "drop"}, "only to throw them away"),
        ({"preset": "stream", "batch_barrier": True}, "batch_barrier waits for"),
        ({"preset": "sync", "max_refills": 3}, "needs dynamic_sampling"),
    ],
)
def test_contradictions_are_refused_with_the_reason(keys: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ScheduleConfig(**keys)


def test_a_preset_fills_in_and_what_is_given_wins() -> None:
    stream = ScheduleConfig(preset="stream", oversample=0.25)
    assert (stream.unfinished, stream.on_stale, stream.oversample) == ("interrupt", "mask", 0.25)
    assert stream.groups_in_flight(8) == 10
    assert ScheduleConfig(preset="async", max_staleness=3).groups_in_flight(8) == 32
    again = ScheduleConfig.model_validate(stream.model_dump(mode="json"))
    assert again == stream
