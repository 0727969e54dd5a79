"""The schedule's decisions in the plainest words: every question looks at every open group.

`CheckedSchedule` is the real one, which must answer every question as this one does.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

from services.orchestrator.core.schedule import Schedule, Selection
from services.protocol.run.schedule import ScheduleConfig


@dataclass(kw_only=True)
class PlainGroup:
    oldest: int
    newest: int | None = None
    rolled_out: bool = False
    ready: bool = False
    trainable: bool = False


class PlainSchedule:
    """Which groups are open, and what follows from that."""

    def __init__(self, config: ScheduleConfig, batch_groups: int) -> None:
        self.config = config
        self.batch_groups = batch_groups
        self.groups: dict[int, PlainGroup] = {}
        self.taken: dict[int, PlainGroup] = {}

    def decisive(self, group_id: int) -> float:
        group = self.groups[group_id]
        if self.config.on_stale != "mask":
            return group.oldest
        return inf if group.newest is None or not group.rolled_out else group.newest

    def overdue(self, version: int) -> list[int]:
        limit = version - self.config.max_staleness
        return sorted(group for group in self.groups if self.decisive(group) < limit)

    def must_hold(self, version: int) -> tuple[set[int], set[int]]:
        """The groups that no later batch may hold, and the oldest if a batch is those."""
        limit = version - self.config.max_staleness
        drops, waits = self.config.on_stale == "drop", self.config.unfinished == "wait"
        late = {group for group in self.groups if not drops and self.decisive(group) <= limit}
        return late, set(sorted(self.groups)[: self.batch_groups] if waits else ())

    def awaited(self, version: int) -> int:
        late, first = (
            {group for group in groups if not self.groups[group].ready}
            for groups in self.must_hold(version)
        )
        return max(len(late), len(first))

    def lacks_samples(self, version: int) -> bool:
        late, first = self.must_hold(version)
        if any(not self.groups[group].rolled_out for group in late | first):
            return True
        return sum(group.rolled_out for group in self.groups.values()) < self.batch_groups

    def select(self, version: int) -> Selection | None:
        late, first = self.must_hold(version)
        if any(not self.groups[group].ready for group in late | first):
            return None
        limit = version - self.config.max_staleness
        good = {g for g in self.groups if self.groups[g].ready and self.decisive(g) >= limit}
        batch = late & good
        batch |= set(sorted(good - batch)[: max(0, self.batch_groups - len(batch))])
        if len(batch) < self.batch_groups:
            return None
        self.taken = {group: self.groups.pop(group) for group in sorted(batch)}
        train = [group for group, one in self.taken.items() if one.trainable]
        return Selection(
            train=tuple(train),
            filtered=tuple(group for group, one in self.taken.items() if not one.trainable),
            staleness=tuple(version - max(limit, self.taken[g].oldest) for g in train),
            min_version=limit,
        )

    def stages(self) -> tuple[int, int, int]:
        """Groups that are sampled, scored and ready."""
        groups = self.groups.values()
        ready, rolled_out = (
            sum(group.ready for group in groups),
            sum(g.rolled_out for g in groups),
        )
        return len(groups) - rolled_out, rolled_out - ready, ready


class CheckedSchedule(Schedule):
    """The real schedule; it fails as soon as it decides otherwise than the plain one."""

    def __init__(self, config: ScheduleConfig, **sizes: Any) -> None:
        super().__init__(config, **sizes)
        self.plain = PlainSchedule(config, self.batch_groups)

    def _alike(self) -> None:
        slots = self.slots
        assert (slots.sampling, slots.scoring, slots.ready) == self.plain.stages()
        assert self.open_groups == len(self.plain.groups)
        assert self.unfinished == sum(not group.ready for group in self.plain.groups.values())

    def admit(self, group_id: int, version: int) -> None:
        super().admit(group_id, version)
        self.plain.groups[group_id] = PlainGroup(oldest=version)
        self._alike()

    def restart(self, group_id: int, version: int) -> None:
        super().restart(group_id, version)
        self.plain.groups[group_id] = PlainGroup(oldest=version)
        self._alike()

    def sampled(self, group_id: int, oldest: int, newest: int) -> None:
        super().sampled(group_id, oldest, newest)
        group = self.plain.groups[group_id]
        group.oldest = min(group.oldest, oldest)
        group.newest = newest if group.newest is None else max(newest, group.newest)
        self._alike()

    def rolled_out(self, group_id: int) -> None:
        super().rolled_out(group_id)
        self.plain.groups[group_id].rolled_out = True
        self._alike()

    def ready(self, group_id: int, oldest: int, *, trainable: bool) -> None:
        super().ready(group_id, oldest, trainable=trainable)
        group = self.plain.groups[group_id]
        group.oldest, group.trainable = oldest, trainable
        group.rolled_out = group.ready = True
        self._alike()

    def refill(self, group_id: int) -> bool:
        refilled = super().refill(group_id)
        if refilled:
            del self.plain.groups[group_id]
        self._alike()
        return refilled

    def close(self, group_id: int) -> None:
        super().close(group_id)
        del self.plain.groups[group_id]
        self._alike()

    def overdue(self, trainer_version: int) -> list[int]:
        overdue = super().overdue(trainer_version)
        assert overdue == self.plain.overdue(trainer_version)
        return overdue

    def awaited(self, trainer_version: int) -> int:
        awaited = super().awaited(trainer_version)
        assert awaited == self.plain.awaited(trainer_version)
        return awaited

    def lacks_samples(self, trainer_version: int) -> bool:
        lacks = super().lacks_samples(trainer_version)
        assert lacks == self.plain.lacks_samples(trainer_version)
        return lacks

    def select(self, trainer_version: int) -> Selection | None:
        selection = super().select(trainer_version)
        assert selection == self.plain.select(trainer_version)
        self._alike()
        return selection

    def published(self, version: int | None) -> None:
        super().published(version)
        self.plain.taken = {}

    def went_back(self, version: int) -> frozenset[int]:
        keep = super().went_back(version)
        self.plain.groups |= self.plain.taken
        self.plain.taken = {}
        assert keep == frozenset(self.plain.groups)
        return keep
