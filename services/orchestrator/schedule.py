"""Which sample groups may start and which are trained next: pure decisions, no waiting.

A slot is charged when a group is admitted and freed when the weights trained on it are
live on the replicas. The staleness bound is hard in every way to keep it: a batch holds
every group that would exceed it one step later, and waits for it (`wait`, and `withhold`,
which admits so few that no batch grows); or the group is given up (`drop`); or its tokens
that are too old carry no gradient (`mask`), and then only a group without any other token
must be in the batch at once.
"""

from collections import deque
from dataclasses import dataclass
from math import inf

from services.protocol.schedule import ScheduleConfig


@dataclass(kw_only=True)
class _OpenGroup:
    """An admitted group that no batch has taken.

    Attributes:
        oldest: version of its oldest token, a lower bound until it is rolled out.
        newest: version of its newest token so far, None before the first.
        refills: how often its place in a batch was filled before.
        rolled_out: all its trajectories are there; they are being scored.
        ready: it is scored.
        trainable: its rewards differ, or the algorithm learns from equal ones, too.
    """

    group_id: int
    oldest: int
    newest: int | None = None
    refills: int = 0
    rolled_out: bool = False
    ready: bool = False
    trainable: bool = False


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A batch: groups to train, and groups of equal rewards that only count towards it.

    Attributes:
        train: group ids, oldest first; empty when there is nothing to learn from.
        filtered: group ids, oldest first.
        staleness: of each group in `train`, in the same order, as far as it is trained on.
        min_version: tokens of older versions carry no gradient.
    """

    train: tuple[int, ...]
    filtered: tuple[int, ...]
    staleness: tuple[int, ...]
    min_version: int


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What the admission slots are used for.

    Attributes:
        sampling: groups being sampled.
        scoring: groups that wait for scores.
        ready: groups that wait for their batch.
        training: groups in the batch that is being trained.
        updating: groups whose trained weights are not live yet.
        free: the rest.
    """

    sampling: int
    scoring: int
    ready: int
    training: int
    updating: int
    free: int


class Schedule:
    """Admission slots, batch choice and the staleness bound of one run."""

    def __init__(self, config: ScheduleConfig, *, batch_groups: int) -> None:
        self.bound = config.max_staleness
        self.batch_groups = batch_groups
        self.capacity = config.groups_in_flight(batch_groups)
        self._ahead = config.groups_ahead(batch_groups)
        self._config = config
        self._open: dict[int, _OpenGroup] = {}
        self._refills: deque[int] = deque()
        self._taken: list[_OpenGroup] = []
        self._not_live: dict[int, int] = {}
        self._live: int | None = None
        self._trainer: int | None = None

    @property
    def open_groups(self) -> int:
        """Groups admitted and not yet taken into a batch or closed."""
        return len(self._open)

    @property
    def unfinished(self) -> list[int]:
        """Ids of open groups still being rolled out or scored, oldest first."""
        return sorted(group.group_id for group in self._open.values() if not group.ready)

    @property
    def slots(self) -> Slots:
        """What the slots are used for now."""
        groups = self._open.values()
        ready = sum(group.ready for group in groups)
        scoring = sum(group.rolled_out for group in groups) - ready
        updating = sum(self._not_live.values())
        used = len(groups) + len(self._taken) + updating
        return Slots(
            sampling=len(groups) - scoring - ready,
            scoring=scoring,
            ready=ready,
            training=len(self._taken),
            updating=updating,
            free=max(0, self.capacity - used),
        )

    # Admission

    def free_slots(self, *, steps_left: int) -> int:
        """How many groups may be admitted now; none that the remaining steps cannot use."""
        charged = len(self._open) + len(self._taken) + sum(self._not_live.values())
        useful = steps_left * self.batch_groups - len(self._open) - len(self._taken)
        room = min(self.capacity - len(self._open), self._ahead - charged, useful)
        return max(0, min(room, self._in_time))

    @property
    def _in_time(self) -> int:
        """Further groups that can be trained before what is sampled now exceeds the bound.

        Of so old a version that no batch may hold it, none is begun. A batch may grow to hold
        all the others, unless that is to be avoided.
        """
        if self._live is None:
            return self.capacity
        trainer = self._live if self._trainer is None else self._trainer
        next_batch = trainer + bool(self._taken)
        batches = max(0, self._live + self.bound - next_batch + 1)
        if batches and self._config.on_stale != "withhold":
            return self.capacity
        return batches * self.batch_groups - len(self._open)

    def admit(self, group_id: int, version: int) -> None:
        """Charge a slot; `version` is the oldest a leased replica serves now."""
        if group_id in self._open:
            raise ValueError(f"group {group_id} is already open")
        refills = self._refills.popleft() if self._refills else 0
        self._open[group_id] = _OpenGroup(group_id=group_id, oldest=version, refills=refills)

    # What becomes of a group

    def restart(self, group_id: int, version: int) -> None:
        """A group is rolled out again from nothing in the slot that it holds."""
        refills = self._open[group_id].refills
        self._open[group_id] = _OpenGroup(group_id=group_id, oldest=version, refills=refills)

    def sampled(self, group_id: int, oldest: int, newest: int) -> None:
        """A trajectory of the group holds tokens of these versions."""
        group = self._open[group_id]
        group.oldest = min(group.oldest, oldest)
        group.newest = max(newest, newest if group.newest is None else group.newest)

    def rolled_out(self, group_id: int) -> None:
        """All trajectories of the group are there; they are being scored."""
        self._open[group_id].rolled_out = True

    def ready(self, group_id: int, oldest: int, *, trainable: bool) -> None:
        """The group is rolled out and scored; `oldest` is exact from here on."""
        group = self._open[group_id]
        group.oldest, group.trainable = oldest, trainable
        group.rolled_out = group.ready = True

    def refill(self, group_id: int) -> bool:
        """Close a group of equal rewards and have its place in a batch filled again.

        Returns:
            False if it was filled as often as it may be: the group stays open.
        """
        refills = self._open[group_id].refills + 1
        if refills > self._config.max_refills:
            return False
        del self._open[group_id]
        self._refills.append(refills)
        return True

    def close(self, group_id: int) -> None:
        """The group leaves without a batch; its slot is free at once."""
        del self._open[group_id]

    # Batches

    def overdue(self, trainer_version: int) -> list[int]:
        """Open groups above the bound already, oldest first; they must not be trained.

        With `drop` that is how slow groups end, with `mask` those all of whose tokens are
        too old. Otherwise it happens only when a replica served an older version than any
        leased one did at admission.
        """
        limit = trainer_version - self.bound
        groups = self._open.values()
        return sorted(group.group_id for group in groups if self._decisive(group) < limit)

    def _decisive(self, group: _OpenGroup) -> float:
        """The policy version that must not be below the limit if the group is to be trained.

        That of its oldest token; with `mask` that of its newest, which is not known while
        more of them come.
        """
        if self._config.on_stale != "mask":
            return group.oldest
        return inf if group.newest is None or not group.rolled_out else group.newest

    def _must_train(self, group: _OpenGroup, limit: int) -> bool:
        """Whether the next batch must hold the group, because no later one may."""
        return self._config.on_stale != "drop" and self._decisive(group) <= limit

    def awaited(self, trainer_version: int) -> list[int]:
        """Unfinished groups that the next batch must hold, oldest first."""
        limit = trainer_version - self.bound
        must = {g.group_id for g in self._open.values() if self._must_train(g, limit)}
        if self._config.unfinished == "wait":
            must.update(sorted(self._open)[: self.batch_groups])
        return sorted(group_id for group_id in must if not self._open[group_id].ready)

    def lacks_samples(self, trainer_version: int) -> bool:
        """Whether the next batch needs more than scores for what is rolled out."""
        if any(not self._open[group].rolled_out for group in self.awaited(trainer_version)):
            return True
        return sum(group.rolled_out for group in self._open.values()) < self.batch_groups

    def select(self, trainer_version: int) -> Selection | None:
        """The next batch, or None while it must wait; what it takes leaves the open groups."""
        self._trainer = trainer_version
        if self.awaited(trainer_version):
            return None
        limit = trainer_version - self.bound
        ready = [g for g in self._open.values() if g.ready and self._decisive(g) >= limit]
        must = {group.group_id for group in ready if self._must_train(group, limit)}
        ready.sort(key=lambda group: (group.group_id not in must, group.group_id))
        batch = ready[: max(self.batch_groups, len(must))]
        if len(batch) < self.batch_groups:
            return None
        batch.sort(key=lambda group: group.group_id)
        for group in batch:
            del self._open[group.group_id]
        self._taken = batch
        train = [group for group in batch if group.trainable]
        return Selection(
            train=tuple(group.group_id for group in train),
            filtered=tuple(group.group_id for group in batch if not group.trainable),
            staleness=tuple(trainer_version - max(limit, group.oldest) for group in train),
            min_version=limit,
        )

    def published(self, version: int | None) -> None:
        """The batch taken last became `version`, or None when it trained nothing."""
        if version is not None:
            self._trainer = version
            self._not_live[version] = self._not_live.get(version, 0) + len(self._taken)
        self._taken = []

    def live(self, version: int) -> None:
        """Every leased replica serves at least `version`: free the slots up to it."""
        self._live = version
        for trained in [trained for trained in self._not_live if trained <= version]:
            del self._not_live[trained]

    def went_back(self) -> frozenset[int]:
        """The trainer went back to a checkpoint: forget what was charged for its versions.

        Returns:
            The open groups; those of a batch that it did not finish are among them again.
        """
        self._open |= {group.group_id: group for group in self._taken}
        self._not_live.clear()
        self._taken = []
        self._live = self._trainer = None
        return frozenset(self._open)
