"""The replicas: their states, their versions and their leases."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from services.protocol.errors import InvalidInput
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.replica_control import ControlOutcome, Hold
from services.protocol.weights.weight_bus import Member, ReplicaState
from services.protocol.weights.weights import WeightManifest, first_difference
from services.weight_bus.config import WeightBusConfig

SERVING = (ReplicaState.LIVE, ReplicaState.STAGING, ReplicaState.COMMITTING)
"""States with a lease: staging does not disturb generation, committing only delays it."""

_HELD = {
    Hold.PAUSED: ReplicaState.PAUSED,
    Hold.ASLEEP: ReplicaState.ASLEEP,
    Hold.LENT: ReplicaState.LENT,
}

_LOST_KEPT = 1024
"""Dead replicas whose names are remembered after they have left the table."""


@dataclass
class Replica:
    """The bus's entry of one rollout server.

    Attributes:
        hello: how it introduced itself.
        state: see `ReplicaState`.
        committed_version: version it serves, None before its first commit.
        registered_at: when it first registered, by the clock of `Replicas`.
        heard_since: when it registered or was heard of again after a silence.
        seen_at: when it was last heard of.
        copy: manifest of the version it keeps a copy of, None if it keeps none.
        last_error: why it was last suspected or failed.
        held: why it may not work.
        loaded: manifest of what it committed last in this life of the bus.
        was_leased: it has had a lease in this life of the bus.
        died_live: when it died, no order to it was open, and nothing was wrong with its version.
    """

    hello: ReplicaHello
    state: ReplicaState
    committed_version: int | None
    registered_at: float
    heard_since: float
    seen_at: float
    copy: WeightManifest | None = None
    last_error: str = ""
    held: Hold = Hold.NONE
    loaded: WeightManifest | None = None
    was_leased: bool = False
    died_live: bool = False

    @property
    def sleeps(self) -> bool:
        """Its engine has freed its memory, or is ordered to."""
        return self.held in (Hold.ASLEEP, Hold.LENT)

    @property
    def trained_from(self) -> str:
        """The model from which training to its version began; empty if that is not known."""
        for served in (self.loaded, self.copy):
            if served is not None and served.version == self.committed_version:
                return served.model
        return ""


class Replicas:
    """All replicas and the versions they hold; no input or output, no tasks.

    Attributes:
        newest_version: highest version published or reported by a member; it never falls.
        max_lag: versions that a leased replica may be behind, None for any number.
        pushes: commits so far.
    """

    def __init__(self, config: WeightBusConfig, *, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._lost: deque[str] = deque(maxlen=_LOST_KEPT)  # were dead when they were forgotten
        self.newest_version: int | None = None
        self.max_lag: int | None = None
        self.pushes = 0

    def get(self, replica_id: str) -> Replica | None:
        """The replica, if it is in the table."""
        return self._replicas.get(replica_id)

    @property
    def replica_ids(self) -> tuple[str, ...]:
        """Every replica in the table."""
        return tuple(self._replicas)

    @property
    def copies(self) -> tuple[WeightManifest, ...]:
        """Manifests of the versions that replicas keep a copy of."""
        return tuple(one.copy for one in self._replicas.values() if one.copy is not None)

    def enter(self, hello: ReplicaHello) -> None:
        """Add a replica, or renew its entry; an update of it may be under way.

        One that was dead may carry out an order of before, or may have missed that its version was
        wrong: it gets a lease by a commit only, unless it died live and serves the same version.
        """
        known = self._replicas.get(hello.replica_id)
        if known is not None and known.state is not ReplicaState.DEAD:
            known.hello = hello
            self._heard(known)
            if hello.committed_version is None and known.state in SERVING:
                # It holds no whole version: a commit failed half-way.
                known.state = ReplicaState.SUSPECT
            known.committed_version, known.copy = hello.committed_version, hello.copy
            known.held = hello.held
        else:
            has_weights = hello.committed_version is not None
            is_doubtful = hello.replica_id in self._lost
            if known is not None:
                same = known.committed_version == hello.committed_version
                is_doubtful = not (known.died_live and same)
            served = ReplicaState.CATCHING_UP if is_doubtful else ReplicaState.LIVE
            self._replicas[hello.replica_id] = Replica(
                hello=hello,
                state=served if has_weights else ReplicaState.JOINING,
                committed_version=hello.committed_version,
                registered_at=self._clock(),
                heard_since=self._clock(),
                seen_at=self._clock(),
                copy=hello.copy,
                held=hello.held,
                was_leased=known is not None and known.was_leased,
            )
        self.raise_newest(hello.committed_version)

    def seen(self, replica_id: str) -> bool:
        """Note a heartbeat; False if the replica must register (again)."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.state is ReplicaState.DEAD:
            return False
        self._heard(replica)
        return True

    def _heard(self, replica: Replica) -> None:
        if self._silent(replica):
            replica.heard_since = self._clock()
        replica.seen_at = self._clock()

    def _silent(self, replica: Replica) -> bool:
        return self._clock() - replica.seen_at > self._config.heartbeat_timeout_s

    def holder_of(self, manifest: WeightManifest, *, besides: str) -> str | None:
        """A replica in service that keeps a copy of these very bytes."""
        for replica_id, replica in self._replicas.items():
            copy = replica.copy
            holds = copy is not None and copy.digests == manifest.digests
            same = holds and replica.committed_version == manifest.version
            if same and replica_id != besides and self.leased(replica):
                return replica_id
        return None

    def leave(self, replica_id: str) -> None:
        """Forget a replica."""
        self._replicas.pop(replica_id, None)

    def hold(self, replica_id: str, held: Hold) -> None:
        """The replica is ordered to stop its work."""
        self._replicas[replica_id].held = held

    @property
    def sharing(self) -> dict[str, Hold]:
        """Replicas that share devices with the trainer and are not dead, each with its hold."""
        return {
            replica_id: replica.held
            for replica_id, replica in self._replicas.items()
            if replica.hello.devices and replica.state is not ReplicaState.DEAD
        }

    def note_outcome(self, outcome: ControlOutcome) -> None:
        """The replica reports the outcome of an operator's order."""
        replica = self._replicas.get(outcome.replica_id)
        if replica is None:
            return
        replica.held = outcome.held
        if not outcome.has_weights and replica.committed_version is not None:
            replica.committed_version, replica.copy = None, None
            replica.state = ReplicaState.CATCHING_UP

    def check_publish(self, manifest: WeightManifest, *, again: bool) -> None:
        """Refuse a version that must not become the newest.

        Args:
            manifest: the version.
            again: the newest version may be published again.

        Raises:
            InvalidInput: the version is not above the newest, or a replica in service could
                not load it without losing its own: names, shapes or element types differ.
        """
        version, newest = manifest.version, self.newest_version
        if newest is not None and (version < newest or (version == newest and not again)):
            raise InvalidInput(
                "version", version, f"Version {newest} exists; publish a higher one."
            )
        for replica_id, replica in self._replicas.items():
            served = replica.loaded or replica.copy
            if served is None or not self.in_service(replica):
                continue
            difference = first_difference(manifest, served)
            if difference is not None:
                fix = f"{replica_id} serves another model: {difference}. Deploy it anew."
                raise InvalidInput("tensors", f"version {version}", fix)

    def begin(self, replica_id: str, state: ReplicaState) -> None:
        """An update of the replica enters a new state."""
        self._replicas[replica_id].state = state

    def fail(self, replica_id: str, state: ReplicaState, error: str) -> None:
        """An update of the replica failed."""
        replica = self._replicas[replica_id]
        replica.state, replica.last_error = state, error

    def commit(self, replica_id: str, manifest: WeightManifest, *, received: bool) -> None:
        """The replica serves this version from now on.

        Args:
            replica_id: see above.
            manifest: see above.
            received: by itself and not by the relay of its node.
        """
        replica, version = self._replicas[replica_id], manifest.version
        replica.state, replica.committed_version = ReplicaState.LIVE, version
        replica.copy = manifest if received and replica.hello.keeps_copy else None
        replica.loaded = manifest
        self.pushes += 1
        self.raise_newest(version)

    def raise_newest(self, version: int | None) -> None:
        """Note that a version exists."""
        if version is not None and (self.newest_version is None or version > self.newest_version):
            self.newest_version = version

    def expire(self) -> list[str]:
        """Mark silent replicas dead and forget those long dead; returns the newly dead."""
        died = []
        for replica_id, replica in list(self._replicas.items()):
            silence = self._clock() - replica.seen_at
            if silence > self._config.forget_after_s:
                if replica.state is ReplicaState.DEAD and not replica.died_live:
                    self._lost.append(replica_id)
                self.leave(replica_id)
            elif silence > self._config.dead_after_s and replica.state is not ReplicaState.DEAD:
                replica.died_live = replica.state is ReplicaState.LIVE
                self.fail(replica_id, ReplicaState.DEAD, f"silent for {silence:.0f} s")
                died.append(replica_id)
        return died

    def in_service(self, replica: Replica) -> bool:
        """Whether it serves and has been heard of lately."""
        serves = replica.state in SERVING and replica.held is Hold.NONE
        return serves and not self._silent(replica)

    def returns(self, replica: Replica) -> bool:
        """Whether it is silent or was so lately, so that others of its node may be silent still."""
        heard_s = self._clock() - replica.heard_since
        return self._silent(replica) or heard_s < self._config.heartbeat_timeout_s

    def leased(self, replica: Replica) -> bool:
        """Whether the replica may be given work now."""
        version = replica.committed_version
        if not self.in_service(replica) or version is None or self.newest_version is None:
            return False
        return self.max_lag is None or self.newest_version - version <= self.max_lag

    def members(self) -> tuple[Member, ...]:
        """The table's rows as other services see them, in order of registration."""
        return tuple(self._member(replica) for replica in self._replicas.values())

    def _member(self, replica: Replica) -> Member:
        hello, state = replica.hello, replica.state
        state = _HELD.get(replica.held, state) if state is not ReplicaState.DEAD else state
        if self._silent(replica) and state is not ReplicaState.DEAD:
            state = ReplicaState.SUSPECT
        return Member(
            replica_id=hello.replica_id,
            address=hello.address,
            state=state,
            committed_version=replica.committed_version,
            leased=self.leased(replica),
            model=hello.model,
            max_model_len=hello.max_model_len,
            pid=hello.pid,
            last_error=replica.last_error,
            trained_from=replica.trained_from,
            node_id=hello.node_id,
            devices=hello.devices,
            aliases=hello.aliases,
            deterministic=hello.deterministic,
        )
