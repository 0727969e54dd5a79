"""Hardware and work of a simulated run, the same for every schedule."""

from dataclasses import dataclass
from typing import Protocol

from services.protocol.run.schedule import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Numbers and speeds of the parts of a cluster; any unit of time will do.

    Attributes:
        replicas: rollout servers.
        slots: answers that each samples at a time.
        sandboxes: answers graded at a time.
        train_s: time of a train step.
        push_s: time from a train step's end until every replica serves it.
    """

    replicas: int
    slots: int
    sandboxes: int
    train_s: float
    push_s: float

    @property
    def sequences(self) -> int:
        """Answers sampled at a time, on all replicas."""
        return self.replicas * self.slots


@dataclass(frozen=True, kw_only=True)
class Work:
    """One sample group: tokens of each answer, one a unit of time, and the time to grade each."""

    tokens: tuple[int, ...]
    score_s: tuple[float, ...]


class Groups(Protocol):
    """The work of each sample group, the same for every schedule."""

    def group(self, group_id: int) -> Work:
        """The work of the group of this id, from 1."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run of some train steps under a schedule, on this hardware and with this work."""

    schedule: ScheduleConfig
    batch_groups: int
    steps: int
    hardware: Hardware
    trace: Groups
