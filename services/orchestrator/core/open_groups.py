"""Open sample groups, counted so that no question looks at all of them.

Thousands of groups are open at a time, and a schedule is asked at each event what it waits
for. So ids are kept in order by stage, and groups are counted by stage and by the version
that decides how long they may wait: each question costs as much as there are versions, of
which there are no more than the staleness bound allows.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import inf


class Stage(IntEnum):
    """The stage of an open group."""

    SAMPLING = 0
    SCORING = 1
    READY = 2


@dataclass(kw_only=True)
class OpenGroup:
    """An admitted group that no batch has taken.

    Attributes:
        oldest: version of its oldest token, a lower bound until it is rolled out.
        newest: version of its newest token so far, None before the first.
        refills: how often its place in a batch was filled before.
        stage: rolled out means being scored, scored means ready.
        trainable: its rewards differ, or the algorithm learns from equal ones, too.
    """

    group_id: int
    oldest: int
    newest: int | None = None
    refills: int = 0
    stage: Stage = Stage.SAMPLING
    trainable: bool = False


class OpenGroups:
    """All open groups; only the methods here change a group.

    A group's decisive version is that of its oldest token; if tokens are masked that of its
    newest, which is not known (infinite) while more of them come.
    """

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._groups: dict[int, OpenGroup] = {}
        self._ids: list[int] = []
        self._in: dict[Stage, list[int]] = {stage: [] for stage in Stage}
        self._at: dict[Stage, Counter[float]] = {stage: Counter() for stage in Stage}

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, group_id: int) -> OpenGroup:
        return self._groups[group_id]

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[int]:
        """Ids, oldest first."""
        return iter(self._ids)

    def add(self, group: OpenGroup) -> None:
        """Open a group, or reopen one that a batch had taken."""
        self._groups[group.group_id] = group
        insort(self._ids, group.group_id)
        self._enter(group)

    def remove(self, group_id: int) -> OpenGroup:
        """Remove a group from the open ones."""
        group = self._groups.pop(group_id)
        del self._ids[bisect_left(self._ids, group_id)]
        self._leave(group)
        return group

    def sampled(self, group_id: int, oldest: int, newest: int) -> None:
        """A trajectory of the group holds tokens of these versions."""
        group = self._groups[group_id]
        newest = newest if group.newest is None else max(newest, group.newest)
        if oldest >= group.oldest and newest == group.newest:
            return  # true of nearly all: nothing is to be counted anew
        self._leave(group)
        group.oldest, group.newest = min(group.oldest, oldest), newest
        self._enter(group)

    def advance(self, group_id: int, stage: Stage, *, oldest: int | None = None) -> OpenGroup:
        """A group comes to a stage; from then on `oldest` is exact, if given."""
        group = self._groups[group_id]
        self._leave(group)
        group.stage = stage
        group.oldest = group.oldest if oldest is None else oldest
        self._enter(group)
        return group

    def _enter(self, group: OpenGroup) -> None:
        insort(self._in[group.stage], group.group_id)
        self._at[group.stage][self.decisive(group)] += 1

    def _leave(self, group: OpenGroup) -> None:
        ids, at = self._in[group.stage], self._at[group.stage]
        del ids[bisect_left(ids, group.group_id)]
        version = self.decisive(group)
        at[version] -= 1
        if not at[version]:
            del at[version]

    def decisive(self, group: OpenGroup) -> float:
        """The version that must not be below a batch's limit if the group is to be in it."""
        if not self._masked:
            return group.oldest
        return inf if group.newest is None or group.stage is Stage.SAMPLING else group.newest

    def stage(self, stage: Stage) -> Iterator[int]:
        """Ids of those in a stage, oldest first."""
        return iter(self._in[stage])

    def count(self, stage: Stage) -> int:
        """Number of groups in a stage."""
        return len(self._in[stage])

    def among_oldest(self, stage: Stage, groups: int) -> int:
        """Number of the oldest `groups` that are in a stage."""
        if len(self._ids) <= groups:
            return len(self._in[stage])
        return bisect_right(self._in[stage], self._ids[groups - 1])

    def up_to(self, stage: Stage, version: int) -> int:
        """Number of groups in a stage whose decisive version is not newer."""
        return sum(count for at, count in self._at[stage].items() if at <= version)

    def older_than(self, version: int) -> list[int]:
        """Ids of groups of an older decisive version, oldest first."""
        if not any(self.up_to(stage, version - 1) for stage in Stage):
            return []
        groups = self._groups
        return [one for one in self._ids if self.decisive(groups[one]) < version]

    def ready(self, version: int) -> Iterator[OpenGroup]:
        """Ready groups of this decisive version or a newer one, oldest first."""
        found = (self._groups[group_id] for group_id in self._in[Stage.READY])
        return (group for group in found if self.decisive(group) >= version)
