"""Events of the sample groups of a run, which `GroupBook` sends to its observers."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from services.ledger.sample_group import Ending
from services.orchestrator.core.results import GroupResult
from services.orchestrator.core.schedule import Slots
from services.protocol.reward.reward_service import Score
from services.protocol.run.schedule import ScheduleConfig
from services.protocol.trajectory import Trajectory


class Event(msgspec.Struct, frozen=True):
    """A transition of a run or its sample groups."""


class GroupStarted(Event, frozen=True, kw_only=True):
    """A rollout of a group begins; `attempt` is 1 for a group that was just admitted."""

    group_id: int
    task_id: str
    attempt: int


class GroupSampled(Event, frozen=True, kw_only=True):
    """Sampling of a group ended, well or not.

    Attributes:
        began_at: Unix time of the request, seconds.
        arrivals: when each trajectory came, likewise, and the trajectory.
    """

    group_id: int
    began_at: float
    arrivals: Sequence[tuple[float, Trajectory]]


class GroupScored(Event, frozen=True, kw_only=True):
    """The answers of a group have their scores."""

    group_id: int
    scores: Sequence[Score]


class GroupReady(Event, frozen=True, kw_only=True):
    """A group is rolled out and scored, and waits for its batch."""

    group_id: int


class GroupClosed(Event, frozen=True, kw_only=True):
    """A group has ended; each admitted group closes once, except after rollbacks.

    Attributes:
        reason: of `ending`, for people.
        result: of a group that was filtered and belongs to no train step.
    """

    group_id: int
    ending: Ending
    reason: str = ""
    result: GroupResult | None = None


class BatchTaken(Event, frozen=True, kw_only=True):
    """A batch was taken: its groups are trained or filtered next.

    Attributes:
        at_bound: one of them is as stale as it may be.
        ready: groups that wait for the next batch already.
    """

    group_ids: tuple[int, ...]
    at_bound: bool
    ready: int


class BatchTrained(Event, frozen=True, kw_only=True):
    """A train step is done; `GroupClosed` of each of its groups follows."""

    group_ids: tuple[int, ...]
    step: int
    version: int


class VersionLive(Event, frozen=True, kw_only=True):
    """Every leased replica serves this policy version or a newer one."""

    version: int


class RolledBack(Event, frozen=True, kw_only=True):
    """The trainer went back to `step`; `reopened` trained groups are open again."""

    step: int
    reopened: int


class Idle(Event, frozen=True, kw_only=True):
    """The trainer now waits for `trainer` (None: it trains); `slots` shows the use of slots."""

    trainer: str | None
    slots: Slots
    capacity: int


class RunOver(Event, frozen=True, kw_only=True):
    """The run is over; open groups stay in flight."""


class TrainingBegan(Event, frozen=True, kw_only=True):
    """Training begins with an empty schedule of these settings."""

    schedule: ScheduleConfig
    batch_groups: int


class Observer(Protocol):
    """Gets every event; it cannot change the run."""

    def on(self, event: Event, /) -> None:
        """Handle an event; ledger and schedule have changed already."""
