"""Orders of an operator to one replica, through the weight bus."""

from dataclasses import dataclass
from enum import StrEnum

from services.protocol.errors import InvalidInput

SLEEP_LEVELS = (1, 2)
"""1: weights to host memory, KV cache dropped; 2: weights dropped, too."""


class ControlAction(StrEnum):
    """Actions that a replica can be ordered to take.

    A request that is ended has `finish_reason` "abort"; the router goes on with it on
    another replica.
    """

    ABORT = "abort"
    """End every request that is open."""
    PAUSE = "pause"
    """End every open request and compute nothing until resumed; updates go on."""
    RESUME = "resume"
    """Undo a pause."""
    SLEEP = "sleep"
    """End every open request and free the device's memory."""
    WAKE_UP = "wake_up"
    """Undo sleeping; after level 2 every weight is sent again before the lease."""
    RESET_PREFIX_CACHE = "reset_prefix_cache"
    """Forget the KV cache of prompts; running requests compute theirs again."""
    LEND_DEVICE = "lend_device"
    """End every open request and free the device's memory for the trainer; the bus's order."""
    TAKE_DEVICE = "take_device"
    """Undo lending; the bus's order."""


OPERATOR_ACTIONS = tuple(
    action
    for action in ControlAction
    if action not in (ControlAction.LEND_DEVICE, ControlAction.TAKE_DEVICE)
)
"""Actions that an operator can order."""


class Hold(StrEnum):
    """The reason for which a replica may not work: an operator's order, or the trainer's turn."""

    NONE = "none"
    PAUSED = "paused"
    ASLEEP = "asleep"
    LENT = "lent"
    """Its device is the trainer's now (`placement: shared`)."""


@dataclass(frozen=True, kw_only=True)
class ControlReplica:
    """Order to a replica.

    Attributes:
        control_id: unique; a replica carries it out once, however often it is delivered.
        action: what to do.
        level: how deeply to sleep, None for other actions.
    """

    control_id: str
    action: ControlAction
    level: int | None


@dataclass(frozen=True, kw_only=True)
class ControlOutcome:
    """A replica says how such an order ended.

    Attributes:
        replica_id: the replica.
        control_id: the order's.
        held: what the replica is kept from now, whatever became of the order.
        has_weights: it holds a whole version; False after sleep of level 2.
        refusal: why the replica did not begin.
        error: what went wrong; None on success.
        seconds: how long it took.
    """

    replica_id: str
    control_id: str
    held: Hold
    has_weights: bool
    refusal: InvalidInput | None
    error: str | None
    seconds: float


class ControlFailed(RuntimeError):
    """A replica could not carry out its order, or did not report in time."""


def check_control(action: str, level: int | None) -> tuple[ControlAction, int | None]:
    """The action, and the level that it is to have.

    Raises:
        InvalidInput: no such action, or a level that it does not have.
    """
    if action not in OPERATOR_ACTIONS:
        fix = f"Use one of {', '.join(OPERATOR_ACTIONS)}."
        raise InvalidInput("action", action, fix)
    known = ControlAction(action)
    if known is not ControlAction.SLEEP:
        if level is not None:
            raise InvalidInput("level", level, f"Only sleep has one, not {known}; leave it out.")
        return known, None
    level = SLEEP_LEVELS[0] if level is None else level
    if level not in SLEEP_LEVELS:
        raise InvalidInput("level", level, "Use 1 (keep the weights) or 2 (drop them).")
    return known, level
