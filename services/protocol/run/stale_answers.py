"""What of a run file would learn wrongly from answers, or tokens of them, of older weights."""

from collections.abc import Iterator
from typing import Any

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.schedule import ScheduleConfig


def uncorrected(
    schedule: ScheduleConfig, algorithm: AlgorithmConfig
) -> Iterator[tuple[str, Any, str]]:
    """The field, the value and the fix of each setting."""
    oldest = schedule.max_staleness
    if algorithm.ratio_anchor == "behaviour" and oldest:
        for reason in _wrong_from_behaviour(algorithm, oldest):
            fix = (
                f"With schedule.max_staleness: {oldest} older weights sample some answers, and "
                f"{reason}: set ratio_anchor: proximal."
            )
            yield "algorithm.ratio_anchor", algorithm.ratio_anchor, fix
    if schedule.on_stale == "mask" and algorithm.kl.in_reward and not algorithm.by_token:
        fix = (
            "Masked tokens pay no KL, which their group's mean would need: use kl.where: loss, "
            "on_stale: drop, or advantage: gae or reinforce_plus_plus."
        )
        yield "schedule.on_stale", "mask", fix


def _wrong_from_behaviour(algorithm: AlgorithmConfig, oldest: int) -> Iterator[str]:
    if algorithm.loss == "reinforce":
        yield "reinforce has no ratio that corrects for them"
    if algorithm.distillation is not None and oldest > 1:  # one step does no harm: docs/teachers.md
        yield "the policy would be pulled to its teacher from where it was and not from where it is"
