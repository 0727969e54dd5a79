"""The state of a cluster and its run while faults are injected, each entry with its time."""

from dataclasses import dataclass, field

from millrace_tools.chaos.script import FaultSpec, Turn
from services.protocol.run.orchestrator import LedgerCounts, RunState
from services.protocol.weights.weight_bus import ReplicaState

_WITHOUT_WEIGHTS = {ReplicaState.JOINING, ReplicaState.CATCHING_UP}


@dataclass(frozen=True, kw_only=True)
class Leases:
    """The member table at a time.

    Attributes:
        at_s: seconds of the campaign's clock; as in all others.
        leased: replicas with a lease.
        newest_version: highest published, None for none.
        bus_id: incarnation of the bus.
        states: of the replicas.
    """

    at_s: float
    leased: frozenset[str]
    newest_version: int | None
    bus_id: str
    states: frozenset[ReplicaState] = frozenset()

    def shows(self, turn: Turn, expected: int) -> bool:
        """Whether the cluster is in this part of a turn; `expected` replicas are all."""
        if turn is Turn.SAMPLING:
            return len(self.leased) >= expected
        wanted = {ReplicaState.LENT} if turn is Turn.LENT else _WITHOUT_WEIGHTS
        return bool(self.states & wanted)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The run at a time."""

    at_s: float
    state: RunState
    step: int
    ledger: LedgerCounts
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A ledger, read by another connection than its run's.

    Attributes:
        off: groups and tokens by which its two sides differ.
        skipped: positions of the prompt order below the newest that were never admitted.
    """

    at_s: float
    off: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an outside client.

    Attributes:
        sent_s: time of the first attempt.
        ended_s: when it was answered or given up.
        kind: `whole`, `stream` or `session`.
        retries: by the client, beyond those of its library.
        problem: why it was given up, empty for an answer.
    """

    sent_s: float
    ended_s: float
    kind: str
    retries: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """A fault that was injected, or could not be.

    Attributes:
        victim: process id and node of its target.
        refused: why it was not injected, empty if it was.
    """

    at_s: float
    spec: FaultSpec
    victim: str
    refused: str = ""

    @property
    def over_s(self) -> float:
        """When it is undone at the latest."""
        lasts = 0.0 if self.refused else self.spec.seconds
        return self.at_s + (lasts or 0.0)


@dataclass(kw_only=True)
class Observation:
    """All entries, each list in the order of time.

    Attributes:
        expected: number of replicas with a lease before the first fault.
        ended_s: time of the last entry.
        lasting: number of faults that did not end in time.
    """

    expected: int
    leases: list[Leases] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    faults: list[InjectedFault] = field(default_factory=list)
    ended_s: float = 0.0
    lasting: int = 0

    @property
    def all_leased(self) -> bool:
        """As many replicas as before the first fault have a lease."""
        return bool(self.leases) and len(self.leases[-1].leased) >= self.expected

    def step_at(self, at_s: float) -> int:
        """The run's train step at a time; 0 before its first entry."""
        return next((one.step for one in reversed(self.progress) if one.at_s <= at_s), 0)
