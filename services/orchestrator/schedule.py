"""Which sample groups may start and which are trained next: pure decisions, no waiting.

Every preset is a point in one space: a staleness bound S and (S + 1) batches of admission
slots. A slot is charged when a group is admitted and freed when the weights trained on it
are live on the replicas. With `on_stale: wait` the bound is hard because a batch must hold
every admitted group that would exceed it one step later; such a batch waits for its
slowest member and may be larger than `batch_groups`.
"""

from dataclasses import dataclass

from services.protocol.orchestrator import ScheduleConfig


@dataclass(kw_only=True)
class _OpenGroup:
    """An admitted group that no batch has taken; `oldest` is a lower bound until ready."""

    group_id: int
    oldest: int
    ready: bool = False
    trainable: bool = False


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A batch: groups to train, and groups of equal rewards that only count towards it.

    Attributes:
        train: group ids, oldest first; empty when there is nothing to learn from.
        filtered: group ids, oldest first.
        staleness: of each group in `train`, in the same order.
    """

    train: tuple[int, ...]
    filtered: tuple[int, ...]
    staleness: tuple[int, ...]


class Schedule:
    """Admission slots, batch choice and the staleness bound of one run."""

    def __init__(self, config: ScheduleConfig, *, batch_groups: int) -> None:
        self.bound = config.staleness_bound
        self.batch_groups = batch_groups
        self.capacity = batch_groups * config.batches_in_flight
        self._drop = config.on_stale == "drop"
        self._open: dict[int, _OpenGroup] = {}
        self._taken = 0
        self._not_live: dict[int, int] = {}

    @property
    def open_groups(self) -> int:
        """Groups admitted and not yet taken into a batch or closed."""
        return len(self._open)

    @property
    def unfinished(self) -> list[int]:
        """Ids of open groups still being rolled out or scored, oldest first."""
        return sorted(group.group_id for group in self._open.values() if not group.ready)

    def free_slots(self, *, steps_left: int) -> int:
        """How many groups may be admitted now; none that the remaining steps cannot use."""
        charged = len(self._open) + self._taken + sum(self._not_live.values())
        useful = steps_left * self.batch_groups - len(self._open) - self._taken
        return max(0, min(self.capacity - charged, useful))

    def admit(self, group_id: int, version: int) -> None:
        """Charge a slot; `version` is the oldest a leased replica serves now."""
        if group_id in self._open:
            raise ValueError(f"group {group_id} is already open")
        self._open[group_id] = _OpenGroup(group_id=group_id, oldest=version)

    def restart(self, group_id: int, version: int) -> None:
        """A group is rolled out again from nothing in the slot that it holds."""
        self._open[group_id] = _OpenGroup(group_id=group_id, oldest=version)

    def sampled(self, group_id: int, version: int) -> None:
        """A trajectory of the group holds tokens of this version: lower the bound."""
        group = self._open[group_id]
        group.oldest = min(group.oldest, version)

    def ready(self, group_id: int, oldest: int, *, trainable: bool) -> None:
        """The group is rolled out and scored; `oldest` is exact from here on."""
        group = self._open[group_id]
        group.oldest, group.ready, group.trainable = oldest, True, trainable

    def close(self, group_id: int) -> None:
        """The group leaves without a batch; its slot is free at once."""
        del self._open[group_id]

    def overdue(self, trainer_version: int) -> list[int]:
        """Open groups above the bound already, oldest first; they must not be trained.

        With `drop` that is how slow groups end. With `wait` it happens only when a replica
        served an older version than any leased one did at admission.
        """
        limit = trainer_version - self.bound
        return sorted(g.group_id for g in self._open.values() if g.oldest < limit)

    def awaited(self, trainer_version: int) -> list[int]:
        """Unfinished groups that the next batch must hold, oldest first."""
        if self._drop:
            return []
        limit = trainer_version - self.bound
        groups = self._open.values()
        return sorted(g.group_id for g in groups if not g.ready and g.oldest <= limit)

    def select(self, trainer_version: int) -> Selection | None:
        """The next batch, or None while it must wait; what it takes leaves the open groups."""
        if self.awaited(trainer_version):
            return None
        limit = trainer_version - self.bound
        ready = [g for g in self._open.values() if g.ready and g.oldest >= limit]
        must = 0 if self._drop else sum(group.oldest == limit for group in ready)
        ready.sort(key=lambda group: (must > 0 and group.oldest > limit, group.group_id))
        batch = ready[: max(self.batch_groups, must)]
        if len(batch) < self.batch_groups:
            return None
        batch.sort(key=lambda group: group.group_id)
        for group in batch:
            del self._open[group.group_id]
        self._taken = len(batch)
        train = [group for group in batch if group.trainable]
        return Selection(
            train=tuple(group.group_id for group in train),
            filtered=tuple(group.group_id for group in batch if not group.trainable),
            staleness=tuple(trainer_version - group.oldest for group in train),
        )

    def published(self, version: int | None) -> None:
        """The batch taken last became `version`, or None when it trained nothing."""
        if version is not None:
            self._not_live[version] = self._not_live.get(version, 0) + self._taken
        self._taken = 0

    def live(self, version: int) -> None:
        """Every leased replica serves at least `version`: free the slots up to it."""
        for trained in [trained for trained in self._not_live if trained <= version]:
            del self._not_live[trained]

    def reset(self) -> None:
        """Forget all groups and charges: the trainer went back to a checkpoint."""
        self._open.clear()
        self._not_live.clear()
        self._taken = 0
