"""A script of faults: which fault hits which target, and when."""

from enum import StrEnum

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel


class Fault(StrEnum):
    """A kind of fault."""

    KILL = "kill"
    FREEZE = "freeze"
    SLOW = "slow"
    CORRUPT = "corrupt"
    DROP = "drop"
    FILL = "fill"
    SKEW = "skew"
    CUT = "cut"


class Target(StrEnum):
    """A part of the cluster: a kind of process, a push, a disk or a node."""

    REPLICA = "replica"
    ENGINE = "engine"
    ROUTER = "router"
    SESSIONS = "sessions"
    ORCHESTRATOR = "orchestrator"
    TRAINER = "trainer"
    RANK = "rank"
    BUS = "bus"
    REWARD = "reward"
    GRADER = "grader"
    CONTROLLER = "controller"
    PROXY = "proxy"
    RAYLET = "raylet"
    PUSH = "push"
    DISK = "disk"
    NODE = "node"


class Turn(StrEnum):
    """A part of a turn where ranks and engines share devices, by the states of the replicas."""

    SAMPLING = "sampling"
    """Every replica has a lease."""
    LENT = "lent"
    """The trainer has the device of a replica."""
    WAKING = "waking"
    """A replica has its device again, and no weights yet."""


LASTING = frozenset({Fault.FREEZE, Fault.SLOW, Fault.FILL, Fault.SKEW, Fault.CUT})
"""Faults with a duration, undone at its end."""

PROCESSES = frozenset(Target) - {Target.PUSH, Target.DISK, Target.NODE}
_TARGETS = {
    Fault.CORRUPT: frozenset({Target.PUSH}),
    Fault.DROP: frozenset({Target.PUSH}),
    Fault.FILL: frozenset({Target.DISK}),
    Fault.CUT: frozenset({Target.NODE}),
}
"""Targets of the faults that do not hit processes."""


class FaultSpec(StrictModel):
    """One line of a script.

    Attributes:
        at: seconds after the start.
        when: the part of a turn in which it is injected, from `at` on; None: at once.
        fault: the kind of fault.
        target: the part of the cluster that it hits.
        node: address of the node that has the target; None: any.
        which: 0-based index among the targets by node and process id; None: a random one.
        seconds: duration, `for` in a file; only of faults that are undone.
        share: of the time that a slowed process still runs.
        mib: maximum that may be free, and is filled, on the run's disk.
        by: seconds that a skewed clock is ahead.
    """

    at: float = Field(ge=0)
    fault: Fault
    target: Target
    when: Turn | None = None
    node: str | None = None
    which: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, alias="for", gt=0, le=3600)
    share: float = Field(default=0.1, gt=0, lt=1)
    mib: int = Field(default=256, ge=1, le=4096)
    by: float = 60.0

    @model_validator(mode="after")
    def _check(self) -> "FaultSpec":
        if (self.fault in LASTING) != (self.seconds is not None):
            wants = "needs `for`" if self.fault in LASTING else "has no end: leave `for` out"
            raise ValueError(f"for: {self.fault} {wants}")
        fits = _TARGETS.get(self.fault, PROCESSES)
        if self.target not in fits:
            raise ValueError(f"target: {self.fault} is of {', '.join(sorted(fits))}")
        if self.node is not None and self.target is Target.PUSH:
            raise ValueError("node: a push has none, but goes from one to others: leave it out")
        return self


class Script(StrictModel):
    """A file of `millrace chaos --script`.

    Attributes:
        faults: in any order.
    """

    faults: tuple[FaultSpec, ...] = Field(min_length=1)

    @property
    def in_order(self) -> list[FaultSpec]:
        """By the time at which they are due."""
        return sorted(self.faults, key=lambda spec: spec.at)
