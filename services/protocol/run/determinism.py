"""What of a run file keeps a run from repeating byte for byte (`determinism: true`)."""

from collections.abc import Iterator, Sequence
from typing import Any

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.distillation import POLICY
from services.protocol.run.schedule import ScheduleConfig
from services.protocol.run.task import LIVE, OUTSIDE, CurriculumConfig

_SCHEDULE: dict[str, Any] = {
    "max_staleness": 0,
    "oversample": 0.0,
    "unfinished": "wait",
    "dynamic_sampling": False,
    "adaptive": False,
}
"""With other values than these it depends on when answers end which weights sample a group, or
which groups a batch holds."""


def unrepeatable(
    schedule: ScheduleConfig,
    curriculum: CurriculumConfig | None,
    algorithm: AlgorithmConfig,
    environments: Sequence[str | None],
) -> Iterator[tuple[str, Any, str]]:
    """The field, the value and the fix, without its full stop, of each setting.

    Args:
        schedule: of the run, as the arguments after it.
        curriculum: None without one.
        algorithm: for its teacher.
        environments: of each source of tasks.
    """
    for name, needed in _SCHEDULE.items():
        value = getattr(schedule, name)
        if value != needed:
            shown = str(needed).lower()
            fix = f"Then it depends on time what a batch holds: set schedule.{name}: {shown}"
            yield f"schedule.{name}", value, fix
    if curriculum is not None:
        fix = "It goes by the newest pass rates, which depend on time: leave it out"
        yield "curriculum", "(a band of pass rates)", fix
    for environment in (LIVE, OUTSIDE):
        if environment in environments:
            fix = "Agents outside take tasks when they like: use an environment of your own or none"
            yield "environment", environment, fix
    taught = algorithm.distillation
    if taught is not None and taught.teacher != POLICY:
        fix = f"Nobody knows whether that server repeats its logprobs: use {POLICY}"
        yield "algorithm.distillation.teacher", taught.teacher, fix
