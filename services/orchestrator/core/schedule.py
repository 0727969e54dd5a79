"""The schedule: which sample groups may start and which are trained next, without waiting.

A slot is charged when a group is admitted and freed when the weights trained on it are
live on the replicas. The staleness bound is hard in every way to keep it: a batch holds
every group that would exceed it one step later, and waits for it (`wait`, and `withhold`,
which admits so few that no batch grows); or the group is given up (`drop`); or its tokens
that are too old carry no gradient (`mask`), and then only a group without any other token
must be in the batch at once.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from services.orchestrator.core.decisions import Listener, decision
from services.orchestrator.core.open_groups import OpenGroup, OpenGroups, Stage
from services.protocol.run.schedule import ScheduleConfig


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
    """Admission slots by use.

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
    """Admission slots, batch choice and the staleness bound of one run.

    It knows no time and no chance: its calls, in order, are all that decides. The listener
    gets every call that counts.
    """

    def __init__(
        self, config: ScheduleConfig, *, batch_groups: int, listener: Listener | None = None
    ) -> None:
        self.listener = listener
        self.bound = config.max_staleness
        self.batch_groups = batch_groups
        self.capacity = config.groups_in_flight(batch_groups)
        self._ahead = config.groups_ahead(batch_groups)
        self.config = config
        self._open = OpenGroups(masked=config.on_stale == "mask")
        self._refills: deque[int] = deque()
        self._stopped: set[int] = set()
        self._taken: list[OpenGroup] = []
        self._not_live: dict[int, int] = {}
        self._live: int | None = None
        self._trainer: int | None = None
        self._lost = False

    @property
    def open_groups(self) -> int:
        """Groups admitted and not yet taken into a batch or closed."""
        return len(self._open)

    @property
    def in_flight(self) -> int:
        """Open groups, and those in the batch that is being trained."""
        return len(self._open) + len(self._taken)

    @property
    def unfinished(self) -> int:
        """Open groups still being rolled out or scored."""
        return len(self._open) - self._open.count(Stage.READY)

    @property
    def slots(self) -> Slots:
        """Admission slots by use now."""
        updating = sum(self._not_live.values())
        used = len(self._open) + len(self._taken) + updating
        return Slots(
            sampling=self._open.count(Stage.SAMPLING),
            scoring=self._open.count(Stage.SCORING),
            ready=self._open.count(Stage.READY),
            training=len(self._taken),
            updating=updating,
            free=max(0, self.capacity - used),
        )

    # Admission

    @decision
    def free_slots(self, *, steps_left: int | None) -> int:
        """Number of groups that may be admitted now and that the remaining steps can use.

        None counts no steps: a group may take so long that the last batches cannot wait for it.
        """
        charged = len(self._open) + len(self._taken) + sum(self._not_live.values())
        most = min(self.capacity - len(self._open), self._ahead - charged)
        if steps_left is not None:
            useful = steps_left * self.batch_groups - len(self._open) - len(self._taken)
            most = min(most, useful)
        return max(0, min(most, self._in_time))

    @property
    def _in_time(self) -> int:
        """Number of further groups that can be trained within the staleness bound.

        Of so old a version that no batch may hold it, none is begun. A batch may grow to hold
        all the others, unless that is to be avoided.
        """
        if self._live is None:
            return self.capacity
        trainer = self._live if self._trainer is None else self._trainer
        next_batch = trainer + (bool(self._taken) or self._lost)
        batches = max(0, self._live + self.bound - next_batch + 1)
        if batches and self.config.on_stale != "withhold":
            return self.capacity
        return batches * self.batch_groups - len(self._open) - self._lost * len(self._taken)

    @decision
    def admit(self, group_id: int, version: int) -> None:
        """Charge a slot; `version` is the oldest a leased replica serves now."""
        if group_id in self._open:
            raise ValueError(f"group {group_id} is already open")
        refills = self._refills.popleft() if self._refills else 0
        self._open.add(OpenGroup(group_id=group_id, oldest=version, refills=refills))

    # What becomes of a group

    @decision
    def restart(self, group_id: int, version: int) -> None:
        """A group is rolled out again from nothing in the slot that it holds."""
        refills = self._open.remove(group_id).refills
        self._stopped.discard(group_id)
        self._open.add(OpenGroup(group_id=group_id, oldest=version, refills=refills))

    @decision
    def sampled(self, group_id: int, oldest: int, newest: int) -> None:
        """A trajectory of the group holds tokens of these versions."""
        self._open.sampled(group_id, oldest, newest)

    @decision
    def rolled_out(self, group_id: int) -> None:
        """All trajectories of the group are there; they are being scored."""
        self._open.advance(group_id, Stage.SCORING)

    @decision
    def ready(self, group_id: int, oldest: int, *, trainable: bool) -> None:
        """The group is rolled out and scored; `oldest` is exact from here on."""
        self._open.advance(group_id, Stage.READY, oldest=oldest).trainable = trainable

    @decision
    def refill(self, group_id: int) -> bool:
        """Close a group of equal rewards and have its place in a batch filled again.

        Returns:
            False if it was filled as often as it may be: the group stays open.
        """
        refills = self._open[group_id].refills + 1
        if refills > self.config.max_refills:
            return False
        self._open.remove(group_id)
        self._refills.append(refills)
        return True

    @decision
    def close(self, group_id: int) -> None:
        """The group leaves without a batch; its slot is free at once."""
        self._open.remove(group_id)

    # Batches

    @decision
    def overdue(self, trainer_version: int) -> list[int]:
        """Open groups above the bound already, oldest first; they must not be trained.

        With `drop` that is how slow groups end, with `mask` those all of whose tokens are
        too old. Otherwise it happens only when a replica served an older version than any
        leased one did at admission.
        """
        return self._open.older_than(trainer_version - self.bound)

    def awaited(self, trainer_version: int) -> int:
        """Least number of unfinished groups in the next batch: 0 if it need not wait."""
        return self._must_hold((Stage.SAMPLING, Stage.SCORING), trainer_version)

    def _must_hold(self, stages: Sequence[Stage], trainer_version: int) -> int:
        """Number of groups in these stages that the next batch must hold.

        No later batch may hold them; or a batch is the oldest groups. The two are counted
        apart, as nearly always one is among the other.
        """
        too_late = in_order = 0
        if self.config.on_stale != "drop":
            limit = trainer_version - self.bound
            too_late = sum(self._open.up_to(stage, limit) for stage in stages)
        if self.config.unfinished == "wait":
            groups = self.batch_groups
            in_order = sum(self._open.among_oldest(stage, groups) for stage in stages)
        return max(too_late, in_order)

    def lacks_samples(self, trainer_version: int) -> bool:
        """Whether the next batch needs more rollouts, and not only scores."""
        if self._must_hold((Stage.SAMPLING,), trainer_version):
            return True
        return len(self._open) - self._open.count(Stage.SAMPLING) < self.batch_groups

    @decision
    def select(self, trainer_version: int) -> Selection | None:
        """The next batch, whose groups are no longer open; None while it must wait."""
        self._trainer = trainer_version
        few = self._open.count(Stage.READY) < self.batch_groups
        if few or self.awaited(trainer_version):
            return None
        limit = trainer_version - self.bound
        batch = self._oldest(list(self._open.ready(limit)), limit)
        if len(batch) < self.batch_groups:
            return None
        for group in batch:
            self._open.remove(group.group_id)
        self._taken = batch
        train = [group for group in batch if group.trainable]
        return Selection(
            train=tuple(group.group_id for group in train),
            filtered=tuple(group.group_id for group in batch if not group.trainable),
            staleness=tuple(trainer_version - max(limit, group.oldest) for group in train),
            min_version=limit,
        )

    def _oldest(self, ready: Sequence[OpenGroup], limit: int) -> list[OpenGroup]:
        """A batch, oldest first: all that no later one may hold, and then the oldest."""
        must = {
            group.group_id
            for group in ready
            if self.config.on_stale != "drop" and self._open.decisive(group) <= limit
        }
        first = sorted(ready, key=lambda group: (group.group_id not in must, group.group_id))
        batch = first[: max(self.batch_groups, len(must))]
        return sorted(batch, key=lambda group: group.group_id)

    @decision
    def interrupted(self, trainer_version: int) -> tuple[int, ...]:
        """Groups that stop now and go on under the next weights, oldest first, each once a batch.

        That is as soon as the batch is full, though it may still wait for scores: whatever came
        to its end meanwhile would have to be waited for, too.
        """
        if self.config.unfinished != "interrupt" or not self._full(trainer_version):
            return ()
        stops = tuple(one for one in self._open.stage(Stage.SAMPLING) if one not in self._stopped)
        self._stopped.update(stops)
        return stops

    def _full(self, trainer_version: int) -> bool:
        """Nothing more needs to be sampled for a batch that will train something."""
        if self._taken:
            return True
        if self._open.count(Stage.READY) < self.batch_groups:
            return False
        if self._must_hold((Stage.SAMPLING,), trainer_version):
            return False
        return any(group.trainable for group in self._open.ready(trainer_version - self.bound))

    @decision
    def published(self, version: int | None) -> None:
        """The batch taken last became `version`, or None when it trained nothing."""
        if version is not None:
            self._trainer = version
            self._not_live[version] = self._not_live.get(version, 0) + len(self._taken)
        self._taken = []
        self._stopped.clear()

    @decision
    def live(self, version: int) -> None:
        """Every leased replica serves at least `version`: free the slots up to it."""
        self._live = version
        for trained in [trained for trained in self._not_live if trained <= version]:
            del self._not_live[trained]

    @decision
    def lost(self) -> None:
        """The trainer is lost: it comes back with a later version, under which it will train
        the batch that it had, before all others."""
        self._lost = True

    @decision
    def went_back(self, version: int) -> frozenset[int]:
        """The trainer went back to a checkpoint: forget what was charged for its versions.

        Args:
            version: that it holds now.

        Returns:
            The open groups; those of a batch that it did not finish are among them again.
        """
        for group in self._taken:
            self._open.add(group)
        self._not_live.clear()
        self._stopped.clear()
        self._taken = []
        self._live, self._trainer, self._lost = None, version, False
        return frozenset(self._open)
