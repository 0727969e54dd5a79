"""All stages, in the order in which they run."""

from collections.abc import Sequence

from millrace_tools.accept.stage import Stage
from millrace_tools.accept.stages import (
    bandwidths,
    engine,
    learning,
    served_logprobs,
    sleep,
    start,
    train_step,
    versions,
    weight_push,
)
from services.protocol.errors import InvalidInput
from services.protocol.strict import nearest

STAGES: tuple[Stage, ...] = (
    *(*versions.STAGES, *bandwidths.STAGES, *train_step.STAGES),
    *(*start.STAGES, *engine.STAGES[:1], *weight_push.STAGES, *served_logprobs.STAGES),
    *(*sleep.STAGES, *engine.STAGES[1:], *learning.STAGES),
)


def chosen(names: Sequence[str] | None) -> tuple[Stage, ...]:
    """The stages of these names, and the start of the services where one of them needs it.

    Args:
        names: None for all.

    Raises:
        InvalidInput: there is no such stage.
    """
    if names is None:
        return STAGES
    known = [one.name for one in STAGES]
    for name in names:
        if name not in known:
            fix = f"Give one of {', '.join(known)}{nearest(name, known)}."
            raise InvalidInput("--stage", name, fix)
    wanted = {one.name for one in STAGES if one.name in names}
    if any(one.services for one in STAGES if one.name in wanted):
        wanted |= {one.name for one in start.STAGES}
    return tuple(one for one in STAGES if one.name in wanted)
