"""The schedule alone: random orders of events, no clock and no tasks."""

import random

import pytest

from services.orchestrator.schedule import Schedule, Selection
from services.protocol.orchestrator import ScheduleConfig

PRESETS = [
    ScheduleConfig(preset="sync"),
    ScheduleConfig(preset="one_step_off"),
    ScheduleConfig(preset="async", max_staleness=2),
    ScheduleConfig(preset="async", max_staleness=5),
]
BATCH = 3


class Simulation:
    """Random groups finish in random order on replicas that lag behind by a random time."""

    def __init__(self, config: ScheduleConfig, seed: int, *, steps: int) -> None:
        self.chance = random.Random(seed)
        self.config = config
        self.schedule = Schedule(config, batch_groups=BATCH)
        self.steps = steps
        self.version = 1
        self.live = 1
        self.next_id = 0
        self.sampled: dict[int, int] = {}
        self.rolling: list[int] = []
        self.batches: list[Selection] = []
        self.closed: dict[int, str] = {}
        self.most_open = 0

    def run(self) -> None:
        moves = [self.admit, self.finish, self.finish, self.fail, self.go_live, self.train]
        for _ in range(20_000):
            if len(self.batches) == self.steps:
                return
            self.chance.choice(moves)()
        raise AssertionError(f"stuck after {len(self.batches)} of {self.steps} batches")

    def admit(self) -> None:
        if self.config.preset == "sync" and self.live < self.version:
            return
        for _ in range(self.schedule.free_slots(steps_left=self.steps - len(self.batches))):
            self.schedule.admit(self.next_id, self.live)
            self.sampled[self.next_id] = self.live
            self.rolling.append(self.next_id)
            self.next_id += 1
        charged = self.schedule.open_groups
        self.most_open = max(self.most_open, charged)

    def finish(self) -> None:
        # A heavy tail: one group in four only finishes when nothing else is left.
        quick = [group for group in self.rolling if group % 4] or self.rolling
        if quick:
            group = self.chance.choice(quick)
            self.rolling.remove(group)
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
            assert self.config.on_stale == "drop"
            if group in self.rolling:
                self.rolling.remove(group)
            self.schedule.close(group)
            self.close(group, "expired")
        batch = self.schedule.select(self.version)
        if batch is None:
            return
        for group in batch.train + batch.filtered:
            self.close(group, "batch")
        assert batch.staleness == tuple(self.version - self.sampled[g] for g in batch.train)
        self.batches.append(batch)
        if batch.train:
            self.version += 1
        self.schedule.published(self.version if batch.train else None)

    def close(self, group: int, ending: str) -> None:
        assert group not in self.closed
        self.closed[group] = ending


@pytest.mark.parametrize("config", PRESETS, ids=lambda c: f"{c.preset}-{c.staleness_bound}")
@pytest.mark.parametrize("on_stale", ["wait", "drop"])
def test_staleness_never_exceeds_the_bound_in_any_order_of_events(
    config: ScheduleConfig, on_stale: str
) -> None:
    config = config.model_copy(update={"on_stale": on_stale})
    for seed in range(40):
        simulation = Simulation(config, seed, steps=30)
        simulation.run()
        worst = max((s for batch in simulation.batches for s in batch.staleness), default=0)
        assert worst <= config.staleness_bound
        if on_stale == "wait":
            assert "expired" not in simulation.closed.values()


@pytest.mark.parametrize("config", PRESETS, ids=lambda c: f"{c.preset}-{c.staleness_bound}")
def test_every_group_is_taken_once_and_none_is_left_when_the_steps_are_done(
    config: ScheduleConfig,
) -> None:
    for seed in range(40):
        simulation = Simulation(config, seed, steps=20)
        simulation.run()
        assert set(simulation.closed) == set(range(simulation.next_id))
        assert simulation.schedule.open_groups == 0


@pytest.mark.parametrize("config", PRESETS, ids=lambda c: f"{c.preset}-{c.staleness_bound}")
def test_no_more_groups_are_open_than_there_are_slots(config: ScheduleConfig) -> None:
    for seed in range(20):
        simulation = Simulation(config, seed, steps=20)
        simulation.run()
        assert BATCH <= simulation.most_open <= BATCH * config.batches_in_flight


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


def test_a_batch_waits_for_the_group_that_would_become_too_stale() -> None:
    schedule = started(PRESETS[1], 6)
    for group in (1, 2, 3, 4, 5):
        schedule.ready(group, 1, trainable=True)
    assert schedule.select(1) is not None
    schedule.published(2)
    assert schedule.awaited(2) == [0]
    assert schedule.select(2) is None
    schedule.ready(0, 1, trainable=True)
    batch = schedule.select(2)
    assert batch is not None
    assert batch.train == (0, 4, 5)
    assert batch.staleness == (1, 1, 1)


def test_a_batch_grows_rather_than_leave_a_group_to_become_too_stale() -> None:
    schedule = Schedule(PRESETS[1], batch_groups=BATCH)
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


def test_a_batch_that_trains_nothing_frees_its_slots_at_once() -> None:
    schedule = started(PRESETS[0], BATCH)
    for group in range(BATCH):
        schedule.ready(group, 1, trainable=False)
    batch = schedule.select(1)
    assert batch == Selection(train=(), filtered=(0, 1, 2), staleness=())
    schedule.published(None)
    assert schedule.free_slots(steps_left=10) == BATCH


def test_a_token_older_than_admission_promised_makes_the_group_overdue_not_trained() -> None:
    schedule = started(PRESETS[0], BATCH, version=4)
    schedule.sampled(1, 3)
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
