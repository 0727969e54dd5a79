"""What is seen of a cluster and its run while faults happen, with the time of each sight."""

from dataclasses import dataclass, field

from millrace_tools.chaos.script import Deed
from services.protocol.run.orchestrator import LedgerCounts, RunState


@dataclass(frozen=True, kw_only=True)
class Leases:
    """The member table at a time.

    Attributes:
        at_s: by the campaign's clock, seconds; as in all others.
        leased: replicas that could be given work.
        newest_version: highest published, None for none.
        bus_id: incarnation of the bus.
    """

    at_s: float
    leased: frozenset[str]
    newest_version: int | None
    bus_id: str


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
    """A ledger read by another connection than its run's.

    Attributes:
        off: groups and tokens by which its two sides differ.
        skipped: places of the prompt order below the newest that were never admitted.
    """

    at_s: float
    off: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an outside client.

    Attributes:
        sent_s: when it was sent first.
        ended_s: when it was answered or given up.
        kind: `whole`, `stream` or `session`.
        again: how often the client had to ask again, beyond what its library does by itself.
        problem: why it was given up, empty for an answer.
    """

    sent_s: float
    ended_s: float
    kind: str
    again: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A deed that was done, or could not be.

    Attributes:
        victim: process id and node of what it hit.
        refused: why nothing was done, empty if it was.
    """

    at_s: float
    deed: Deed
    victim: str
    refused: str = ""

    @property
    def over_s(self) -> float:
        """When it is undone, if nobody ends it before."""
        lasts = 0.0 if self.refused else self.deed.seconds
        return self.at_s + (lasts or 0.0)


@dataclass(kw_only=True)
class Observation:
    """All that was seen, each list in the order of time.

    Attributes:
        expected: replicas with a lease before the first fault.
        ended_s: when the last look was taken.
        lasting: faults that were not seen to be undone.
    """

    expected: int
    leases: list[Leases] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    ended_s: float = 0.0
    lasting: int = 0
