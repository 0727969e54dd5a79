"""Which replica gets a request: a pure policy, without clock, network or Ray.

Sticky first; otherwise near those that begin alike, as far as that does not unbalance; and
otherwise least in flight. Load is counted when the choice is made, never scraped, so a burst
of requests spreads evenly.
"""

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from services.router.config import RouterConfig
from services.router.placement.health import ReplicaHealth
from services.router.request.needs import NO_PREFIX, PromptPrefix

ChoiceKind = Literal["hit", "new", "moved", "spilled", "free"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A replica was chosen.

    Attributes:
        kind: `hit` home replica of the session, `new` first call of a session, `moved` the
            home is not available, `spilled` the home is too loaded, `free` no session. A
            call without session that goes on with a conversation has a home, too.
        trial: the replica is ejected and tried with this; see `ReplicaHealth.over`.
    """

    replica_id: str
    kind: ChoiceKind
    trial: object | None = None


class ReplicaChooser:
    """Chooses replicas and keeps the counts and the session table that it needs.

    `now` is always a reading of one monotonic clock in seconds.

    Attributes:
        homes: which replica each session was given last.
        nameless: the same of conversations without a session; other routers do not learn of
            them, and they push no session out.
        groups: which replica requests that begin alike were given last.
        elsewhere: sequences that other routers have in flight, by replica.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._in_flight: Counter[str] = Counter()
        self._health: dict[str, ReplicaHealth] = {}
        self._turn: dict[str, int] = {}
        self._choices = 0
        self.homes = SessionTable(bound=config.max_sessions, idle_s=config.session_idle_s)
        self.nameless = SessionTable(bound=config.max_sessions, idle_s=config.session_idle_s)
        self.groups = SessionTable(bound=config.max_sessions, idle_s=config.session_idle_s)
        self.elsewhere: Mapping[str, int] = {}

    def choose(
        self,
        candidates: Sequence[str],
        *,
        session: str | None,
        weight: int,
        now: float,
        prefix: PromptPrefix = NO_PREFIX,
        full: Collection[str] = (),
    ) -> Choice | None:
        """Choose among leased replicas and count `weight` sequences there.

        What runs none, such as parsing, leaves no trace, and tries no ejected replica out.

        Args:
            candidates: replicas with a lease.
            session: requests of one session have one home.
            weight: sequences the request will run at once.
            now: the time.
            prefix: how the prompt begins.
            full: candidates that may not be given more now.

        Returns:
            None when none of the candidates may be given work now.
        """
        usable = [
            replica
            for replica in candidates
            if replica not in full and self.health(replica).admits(now)
        ]
        if not usable:
            return None
        choice = self._pick(usable, full, session, prefix, now)
        if not weight:
            return choice
        replica = choice.replica_id
        if session is not None:
            self.homes.set(session, replica, now)
        elif prefix.whole is not None:
            self.nameless.set(prefix.whole, replica, now)
        self._choices += 1
        self._turn[replica] = self._choices
        self._in_flight[replica] += weight
        return dataclasses.replace(choice, trial=self.health(replica).chosen())

    def _pick(
        self,
        usable: list[str],
        full: Collection[str],
        session: str | None,
        prefix: PromptPrefix,
        now: float,
    ) -> Choice:
        if session is not None:
            home = self.homes.get(session, now)
        else:
            earlier = (self.nameless.get(key, now) for key in prefix.earlier)
            home = next(filter(None, earlier), None)
        kind: ChoiceKind = "free" if session is None else "new"
        if home in usable:
            lowest = min(self.load(replica) for replica in usable)
            config = self._config
            if self.load(home) - lowest <= max(config.spill_threshold, config.spill_ratio * lowest):
                return Choice(replica_id=home, kind="hit")
            kind = "spilled"
        elif home is not None:
            kind = "spilled" if home in full else "moved"
        return Choice(replica_id=self._near(usable, session, prefix.group, now), kind=kind)

    def _near(self, usable: list[str], session: str | None, group: str | None, now: float) -> str:
        """The least loaded replica, or that of the group while it is hardly more loaded."""
        order = {replica: self._order(replica, now) for replica in usable}
        lowest = min(load for load, _ in order.values())
        slack = max(self._config.group_slack, self._config.group_ratio * lowest)
        common = None if group is None else self.groups.get(group, now)
        if common in order and order[common][0] - lowest <= slack:
            return common
        key = group or session
        if key is None:
            return min(usable, key=order.__getitem__)
        # Of those that are as good as any, the one that every router would take first.
        near = [replica for replica in usable if order[replica][0] <= lowest + 1]
        best = max(near, key=lambda replica: _rank(key, replica))
        if group is not None:
            self.groups.set(group, best, now)
        return best

    def _order(self, replica: str, now: float) -> tuple[float, int]:
        # Among equally loaded replicas the one whose last turn is longest ago.
        load = self.health(replica).effective_load(self.load(replica), now)
        return load, self._turn.get(replica, 0)

    def release(self, replica_id: str, weight: int) -> None:
        """The request that was counted with `weight` is over on this replica."""
        self._in_flight[replica_id] -= weight
        if self._in_flight[replica_id] <= 0:
            del self._in_flight[replica_id]

    def in_flight(self, replica_id: str) -> int:
        """Sequences that this router counts on a replica."""
        return self._in_flight[replica_id]

    def load(self, replica_id: str) -> int:
        """Sequences that all routers count on a replica, as far as this one knows."""
        return self._in_flight.get(replica_id, 0) + self.elsewhere.get(replica_id, 0)

    @property
    def counts(self) -> dict[str, int]:
        """Sequences that this router counts, by replica."""
        return dict(self._in_flight)

    def health(self, replica_id: str) -> ReplicaHealth:
        """What has been seen of a replica."""
        if replica_id not in self._health:
            self._health[replica_id] = ReplicaHealth(self._config)
        return self._health[replica_id]

    def next_chance(self, candidates: Sequence[str]) -> float | None:
        """When the first of the ejected candidates may be probed, None if none waits."""
        chances = [self.health(replica).next_chance for replica in candidates]
        return min((chance for chance in chances if chance is not None), default=None)

    def keep_only(self, known: set[str]) -> None:
        """Forget health and turns of replicas that are gone; open counts stay."""
        for table in (self._health, self._turn):
            for replica in [name for name in table if name not in known]:
                del table[replica]


def _rank(key: str, replica: str) -> bytes:
    """Rendezvous hashing: the same rank on every router, whichever replicas there are."""
    return blake2b(f"{key}\n{replica}".encode(), digest_size=8).digest()


class SessionTable:
    """A bounded table, least recently used out, idle ones forgotten.

    Args:
        bound: sessions remembered.
        idle_s: one that was not used for so long is forgotten, seconds.

    Attributes:
        shared: its changes are kept, because somebody takes them.
    """

    def __init__(self, *, bound: int, idle_s: float) -> None:
        self._bound, self._idle_s, self.shared = bound, idle_s, False
        self._table: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._changed: dict[str, str | None] = {}

    def __len__(self) -> int:
        return len(self._table)

    def get(self, session: str, now: float) -> str | None:
        """The session's home, None if it has none."""
        self._expire(now)
        return self._table.get(session, (None, 0.0))[0]

    def set(self, session: str, replica: str, now: float) -> None:
        """The session was given this replica."""
        if self._table.get(session, ("", 0.0))[0] != replica:
            self._change(session, replica)
        self._put(session, replica, now)

    def apply(self, session: str, home: str | None, now: float) -> None:
        """Another router gave the session this replica; None: it says that it is over.

        A change made here and not taken yet is newer.
        """
        if session in self._changed:
            return
        if home is None:
            self._table.pop(session, None)
        else:
            self._put(session, home, now)

    def _put(self, session: str, replica: str, now: float) -> None:
        self._table[session] = (replica, now)
        self._table.move_to_end(session)
        if len(self._table) > self._bound:
            dropped, _ = self._table.popitem(last=False)
            self._changed.pop(dropped, None)

    def forget(self, session: str) -> None:
        """The session is over."""
        if self._table.pop(session, None) is not None:
            self._change(session, None)

    def take_changes(self, most: int) -> dict[str, str | None]:
        """Up to `most` changes made here that were not taken yet; None: forgotten."""
        taken = dict(list(self._changed.items())[:most])
        for session in taken:
            del self._changed[session]
        return taken

    def all_changed(self) -> None:
        """Count every home as a change: the table that takes them is new."""
        self._changed = {session: home for session, (home, _) in self._table.items()}

    def _change(self, session: str, home: str | None) -> None:
        if not self.shared:
            return
        self._changed[session] = home
        if len(self._changed) > self._bound:
            # They are not taken as fast: other routers guess, and learn at the next move.
            del self._changed[next(iter(self._changed))]

    def _expire(self, now: float) -> None:
        oldest_allowed = now - self._idle_s
        while self._table:
            session, (_, used) = next(iter(self._table.items()))
            if used > oldest_allowed:
                return
            del self._table[session]
            self._changed.pop(session, None)
