"""The relays of the nodes: which version each holds, and who reads it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from services.protocol.weights.hello import RelayHello
from services.protocol.weights.place import Place
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.config import WeightBusConfig

_STRIKES = 3
"""Failed attempts in a row after which the replicas of a node receive by themselves."""


@dataclass
class Relay:
    """The bus's entry of one relay.

    Attributes:
        hello: how it introduced itself.
        seen_at: when it was last heard of.
        held: manifest of the version that it holds whole, None while another arrives.
        place: where the engines of its node find that version.
        published_at: when that version was published, by the clock of `Relays`.
        arriving: manifest of the version that it was ordered to receive.
        failures: attempts in a row that failed.
        readers: replicas that may map the memory of that version; one that goes silent stays one,
            for it may load what it has mapped when it is back.
        readers_known: False where replicas that the bus has not heard of may map it, too.
        fed: members that it is to send a version to, and which one.
    """

    hello: RelayHello
    seen_at: float
    held: WeightManifest | None = None
    place: Place | None = None
    published_at: float = 0.0
    arriving: WeightManifest | None = None
    failures: int = 0
    readers: set[str] = field(default_factory=set)
    readers_known: bool = True
    fed: dict[str, int] = field(default_factory=dict)

    def holds(self, manifest: WeightManifest) -> bool:
        """Whether it holds these very bytes as this version."""
        held = self.held
        return held is not None and (held.version, held.digests) == (
            manifest.version,
            manifest.digests,
        )

    @property
    def is_read(self) -> bool:
        """Whether a replica may still load from its memory."""
        return bool(self.readers) or not self.readers_known

    def moved(self) -> None:
        """It has taken fresh memory, and never writes to what replicas map."""
        self.readers, self.readers_known = set(), True

    @property
    def passes_on(self) -> WeightManifest | None:
        """The version that it can send, which it may still receive."""
        return self.arriving or self.held


class Relays:
    """All relays in the order of their registration, which is that of the chain.

    Attributes:
        expected: every node with replicas is to have one.
    """

    def __init__(
        self, config: WeightBusConfig, *, expected: bool, clock: Callable[[], float]
    ) -> None:
        self.expected = expected
        self._config, self._clock = config, clock
        self._relays: dict[str, Relay] = {}

    @property
    def relay_ids(self) -> tuple[str, ...]:
        """Every relay, in the order of the chain."""
        return tuple(self._relays)

    def enter(self, hello: RelayHello) -> None:
        """Add a relay, or renew its entry; one of the same node is replaced."""
        failures = 0
        for relay_id, relay in list(self._relays.items()):
            if relay.hello.node_id == hello.node_id and relay_id != hello.relay_id:
                # One that dies whenever it receives is started again and again.
                failures = relay.failures + (relay.arriving is not None)
                self.leave(relay_id)
        new = Relay(hello, self._clock(), failures=failures, readers_known=hello.copy is None)
        known = self._relays.setdefault(hello.relay_id, new)
        known.hello, known.seen_at = hello, self._clock()
        known.held, known.place = hello.copy, hello.place
        known.published_at = self._clock()

    @property
    def copies(self) -> tuple[WeightManifest, ...]:
        """Manifests of the versions that relays hold."""
        return tuple(one.held for one in self._relays.values() if one.held is not None)

    def get(self, relay_id: str) -> Relay | None:
        """The relay, if it is in the table."""
        return self._relays.get(relay_id)

    def seen(self, relay_id: str) -> bool:
        """Note a heartbeat; False if the member is not a known relay."""
        relay = self._relays.get(relay_id)
        if relay is not None:
            relay.seen_at = self._clock()
        return relay is not None

    def forgive(self) -> None:
        """New ranks send from now on: failures with the old ones may be no fault of the relays."""
        for relay in self._relays.values():
            relay.failures = 0

    def leave(self, relay_id: str) -> None:
        """Forget a relay."""
        self._relays.pop(relay_id, None)

    def expire(self, silence_s: float) -> list[str]:
        """Forget relays that have been silent for longer; returns their ids."""
        limit = self._clock() - silence_s
        silent = [name for name, relay in self._relays.items() if relay.seen_at < limit]
        for name in silent:
            self.leave(name)
        return silent

    def on(self, memory_domain: str) -> Relay | None:
        """The relay whose memory a replica can map, while it does its work."""
        for relay in self._relays.values():
            same = relay.hello.memory_domain == memory_domain != ""
            if same and relay.failures < _STRIKES and self._heard(relay):
                return relay
        return None

    def alive(self, relay_id: str) -> bool:
        """Whether it was heard of lately."""
        relay = self._relays.get(relay_id)
        return relay is not None and self._heard(relay)

    def dead(self, relay_id: str) -> bool:
        """Whether it has been silent for longer than `dead_after_s`; False of unknown members."""
        relay = self._relays.get(relay_id)
        return relay is not None and self._clock() - relay.seen_at > self._config.dead_after_s

    def _heard(self, relay: Relay) -> bool:
        return self._clock() - relay.seen_at <= self._config.heartbeat_timeout_s

    def is_passing_on(self, relay_id: str) -> bool:
        """Whether members still receive the version that it holds; silent relays do not count."""
        relay = self._relays.get(relay_id)
        if relay is None or relay.held is None:
            return False
        receivers = [one for one, version in relay.fed.items() if version == relay.held.version]
        return any(one not in self._relays or self.alive(one) for one in receivers)

    def before(self, relay_id: str, newest: int, *, avoided: frozenset[str]) -> str | None:
        """The nearest relay ahead in the chain that works, or has the newest version anyway."""
        found = None
        for one, relay in self._relays.items():
            if one == relay_id:
                break
            works = relay.failures == 0
            if not works and relay.passes_on is not None:
                works = relay.passes_on.version == newest
            if works and one not in avoided and self.alive(one):
                found = one
        return found

    @contextmanager
    def feeding(self, senders: tuple[str, ...], receiver_id: str, version: int) -> Iterator[None]:
        """Within it those of the senders that are relays do not begin another version, or the
        receiver would lose what it has not received yet."""
        relays = [relay for one in set(senders) if (relay := self.get(one)) is not None]
        for relay in relays:
            relay.fed[receiver_id] = version
        try:
            yield
        finally:
            for relay in relays:
                relay.fed.pop(receiver_id, None)

    def holder_of(self, manifest: WeightManifest, *, besides: str) -> str | None:
        """A relay that holds these very bytes."""
        for relay_id, relay in self._relays.items():
            if relay.holds(manifest) and relay_id != besides and self.alive(relay_id):
                return relay_id
        return None
