"""What is to go wrong, and when: a script, written by hand or drawn from a seed."""

from enum import StrEnum

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel


class Fault(StrEnum):
    """What is done to a target."""

    KILL = "kill"
    FREEZE = "freeze"
    SLOW = "slow"
    CORRUPT = "corrupt"
    DROP = "drop"
    FILL = "fill"
    SKEW = "skew"
    CUT = "cut"


class Target(StrEnum):
    """A part of the cluster: kinds of processes, and what is none."""

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


LASTING = frozenset({Fault.FREEZE, Fault.SLOW, Fault.FILL, Fault.SKEW, Fault.CUT})
"""Faults that end, and are undone when they do."""

PROCESSES = frozenset(Target) - {Target.PUSH, Target.DISK, Target.NODE}
_OF = {
    Fault.CORRUPT: frozenset({Target.PUSH}),
    Fault.DROP: frozenset({Target.PUSH}),
    Fault.FILL: frozenset({Target.DISK}),
    Fault.CUT: frozenset({Target.NODE}),
}
"""What the faults that are not of processes can have for a target."""


class Deed(StrictModel):
    """One line of a script.

    Attributes:
        at: seconds after the start.
        fault: what is done.
        target: to what kind of process.
        node: address of the node that has the target; None: any.
        which: 0-based, among those there are by node and process id; None: one is drawn.
        seconds: how long, `for` in a file; only of faults that last.
        share: of the time that a slowed process still runs.
        mib: most that may be free, and is filled, on the run's disk.
        by: seconds that a skewed clock is ahead.
    """

    at: float = Field(ge=0)
    fault: Fault
    target: Target
    node: str | None = None
    which: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, alias="for", gt=0, le=3600)
    share: float = Field(default=0.1, gt=0, lt=1)
    mib: int = Field(default=256, ge=1, le=4096)
    by: float = 60.0

    @model_validator(mode="after")
    def _lasts_as_long_as_it_can(self) -> "Deed":
        if (self.fault in LASTING) != (self.seconds is not None):
            wants = "needs `for`" if self.fault in LASTING else "has no end: leave `for` out"
            raise ValueError(f"for: {self.fault} {wants}")
        return self

    @model_validator(mode="after")
    def _fits_its_target(self) -> "Deed":
        fits = _OF.get(self.fault, PROCESSES)
        if self.target not in fits:
            raise ValueError(f"target: {self.fault} is of {', '.join(sorted(fits))}")
        if self.node is not None and self.target is Target.PUSH:
            raise ValueError("node: a push has none, but goes from one to others: leave it out")
        return self


class Script(StrictModel):
    """A file of `millrace chaos --script`.

    Attributes:
        faults: what is done; in order of time, not of the file.
    """

    faults: tuple[Deed, ...] = Field(min_length=1)

    @property
    def in_order(self) -> list[Deed]:
        """By the time at which they are due."""
        return sorted(self.faults, key=lambda deed: deed.at)
