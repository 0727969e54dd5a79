"""The trainer ranks, in groups: one group for each start of a trainer's ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from services.protocol.errors import InvalidInput
from services.protocol.weights.hello import TrainerHello


@dataclass
class _Rank:
    hello: TrainerHello
    seen_at: float


class TrainerGroups:
    """Ranks by group; a group becomes current when all of its ranks have registered."""

    def __init__(self, *, heartbeat_timeout_s: float, clock: Callable[[], float]) -> None:
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._clock = clock
        self._ranks: dict[str, _Rank] = {}
        self._current: str | None = None
        self._publisher: str | None = None
        self._retired: set[str] = set()

    def enter(self, hello: TrainerHello) -> None:
        """Take a rank in; the last rank of a new group retires the group before.

        A rank of a retired group stays known, so that it may continue to poll, but gets no
        orders and never becomes current again.

        Raises:
            InvalidInput: the rank is not below the world size.
        """
        if not 0 <= hello.rank < hello.world_size:
            raise InvalidInput("rank", hello.rank, f"Use 0 to {hello.world_size - 1}.")
        self._ranks[hello.member_id] = _Rank(hello, self._clock())
        if hello.group in self._retired or hello.group == self._current:
            return
        if len(self._of(hello.group)) == hello.world_size:
            if self._current is not None:
                self._retired.add(self._current)
            self._current = hello.group

    def check_publisher(self, group: str | None) -> None:
        """Refuse a group that another one has replaced: two trainers push to one bus.

        Raises:
            InvalidInput: see above.
        """
        if group in self._retired:
            fix = f"Trainer group {self._current} has taken over this bus; stop one of the two."
            raise InvalidInput("group", group, fix)

    def published(self, group: str | None) -> bool:
        """Note whose ranks hold the newest version, None: unknown; whether they are new ones."""
        before, self._publisher = self._publisher, group
        return group != before

    def hello(self, member_id: str) -> TrainerHello | None:
        """How a rank introduced itself; None if the member is not a known rank."""
        rank = self._ranks.get(member_id)
        return rank.hello if rank is not None else None

    def seen(self, member_id: str) -> bool:
        """Note a heartbeat; False if the member is not a known rank."""
        rank = self._ranks.get(member_id)
        if rank is not None:
            rank.seen_at = self._clock()
        return rank is not None

    def leave(self, member_id: str) -> None:
        """Forget a rank."""
        self._ranks.pop(member_id, None)

    def expire(self, silence_s: float) -> list[str]:
        """Forget ranks that have been silent for longer; returns their member ids."""
        limit = self._clock() - silence_s
        silent = [name for name, rank in self._ranks.items() if rank.seen_at < limit]
        for name in silent:
            self.leave(name)
        return silent

    @property
    def current(self) -> tuple[str, ...] | None:
        """Member ids of the current group in rank order; None unless all are alive."""
        if self._current is None:
            return None
        ranks = self._of(self._current)
        fresh = self._clock() - self._heartbeat_timeout_s
        if any(rank.seen_at < fresh for rank in ranks.values()):
            return None
        size = next(iter(ranks.values())).hello.world_size if ranks else 1
        if len(ranks) != size:
            return None
        return tuple(ranks[index].hello.member_id for index in range(size))

    @property
    def senders(self) -> tuple[str, ...] | None:
        """As `current`, but None before new ranks have published: they have no version to send."""
        return self.current if self._publisher in (None, self._current) else None

    @property
    def can_score(self) -> bool:
        """Whether the current ranks published the newest version, so that they can score it."""
        return self._publisher == self._current and self.current is not None

    def _of(self, group: str) -> dict[int, _Rank]:
        return {rank.hello.rank: rank for rank in self._ranks.values() if rank.hello.group == group}
