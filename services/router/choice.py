"""Which replica gets a request: a pure policy, without clock, network or Ray.

Sticky first, least in-flight otherwise. Load is counted when the choice is made, never
scraped, so a burst of requests spreads evenly.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.router.config import RouterConfig
from services.router.health import ReplicaHealth

ChoiceKind = Literal["hit", "new", "moved", "spilled", "free"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A replica was chosen.

    Attributes:
        kind: `hit` home replica of the session, `new` first call of a session, `moved` the
            home is not available, `spilled` the home is too loaded, `free` no session.
    """

    replica_id: str
    kind: ChoiceKind


class ReplicaChooser:
    """Chooses replicas and keeps the counts and the session table that it needs.

    `now` is always a reading of one monotonic clock in seconds.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._in_flight: dict[str, int] = {}
        self._health: dict[str, ReplicaHealth] = {}
        self._homes: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._turn: dict[str, int] = {}
        self._choices = 0

    def choose(
        self, candidates: Sequence[str], *, session: str | None, weight: int, now: float
    ) -> Choice | None:
        """Choose among leased replicas and count `weight` sequences there.

        Returns:
            None when none of the candidates may be given work now.
        """
        usable = [replica for replica in candidates if self.health(replica).admits(now)]
        if not usable:
            return None
        self._forget_idle_sessions(now)
        choice = self._pick(usable, session, now)
        if session is not None:
            self._remember(session, choice.replica_id, now)
        self._choices += 1
        self._turn[choice.replica_id] = self._choices
        self._in_flight[choice.replica_id] = self.in_flight(choice.replica_id) + weight
        self.health(choice.replica_id).chosen()
        return choice

    def _pick(self, usable: list[str], session: str | None, now: float) -> Choice:
        least = min(usable, key=lambda replica: self._order(replica, now))
        if session is None:
            return Choice(replica_id=least, kind="free")
        home = self._homes.get(session, ("", 0.0))[0]
        if not home:
            return Choice(replica_id=least, kind="new")
        if home not in usable:
            return Choice(replica_id=least, kind="moved")
        lowest = min(self.in_flight(replica) for replica in usable)
        if self.in_flight(home) - lowest > self._config.spill_threshold:
            return Choice(replica_id=least, kind="spilled")
        return Choice(replica_id=home, kind="hit")

    def _order(self, replica: str, now: float) -> tuple[float, int]:
        # Among equally loaded replicas the one whose last turn is longest ago.
        load = self.health(replica).effective_load(self.in_flight(replica), now)
        return load, self._turn.get(replica, 0)

    def release(self, replica_id: str, weight: int) -> None:
        """The request that was counted with `weight` is over on this replica."""
        left = self.in_flight(replica_id) - weight
        if left > 0:
            self._in_flight[replica_id] = left
        else:
            self._in_flight.pop(replica_id, None)

    def in_flight(self, replica_id: str) -> int:
        """Sequences counted on a replica."""
        return self._in_flight.get(replica_id, 0)

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

    @property
    def sessions(self) -> int:
        """Sessions remembered."""
        return len(self._homes)

    def _remember(self, session: str, replica: str, now: float) -> None:
        self._homes[session] = (replica, now)
        self._homes.move_to_end(session)
        if len(self._homes) > self._config.max_sessions:
            self._homes.popitem(last=False)

    def _forget_idle_sessions(self, now: float) -> None:
        oldest_allowed = now - self._config.session_idle_s
        while self._homes:
            session, (_, used) = next(iter(self._homes.items()))
            if used > oldest_allowed:
                return
            del self._homes[session]
