"""What a run waited for, in words."""

from collections.abc import Mapping

CAUSES = {
    "rollout": "sample groups were still being sampled",
    "score": "answers were being scored",
    "batch": "finished groups waited for the rest of their batch",
    "trainer": "their groups were being trained",
    "weights": "newly trained weights were not on the replicas yet",
    "admission": "no further sample group might be admitted",
    "replicas": "no replica had a lease",
    "evaluation": "held-out tasks were being measured",
    "pause": "the run was paused",
    "disk": "the disk was full",
    "recovery": "the trainer was being restored",
}
"""Why the trainer, or a slot of the rollout, is idle."""

_BUSY = 0.85


def waited_most(at_work: float, trainer: Mapping[str, float], rollout: Mapping[str, float]) -> str:
    """One sentence about a time; empty if nothing is known of the trainer then.

    Args:
        at_work: share of the time in which the trainer worked.
        trainer: shares of the time in which the trainer was idle, by cause.
        rollout: shares of the admission slots that sampled nothing, by cause.
    """
    waited = sum(trainer.values())
    if not waited and not at_work:
        return ""
    cause, share = max(trainer.items(), key=lambda one: one[1], default=("", 0.0))
    slots, slots_share = max(rollout.items(), key=lambda one: one[1], default=("", 0.0))
    if at_work < _BUSY * (at_work + waited):
        if f"{share:.0%}" == f"{waited:.0%}":
            why = f"{_NAMES.get(cause, cause)}: {CAUSES.get(cause, cause)}"
            return f"The trainer waited {waited:.0%} of this time for {why}."
        return (
            f"The trainer waited {waited:.0%} of this time, most of all for "
            f"{_NAMES.get(cause, cause)}: for {share:.0%}, {CAUSES.get(cause, cause)}."
        )
    said = f"The trainer was at work {at_work:.0%} of this time"
    if slots_share > 0:
        said += f"; of the rollout's slots, {slots_share:.0%} were idle because {CAUSES[slots]}"
    return f"{said}."


_NAMES = {
    "rollout": "rollouts",
    "score": "scores",
    "weights": "weights to arrive",
    "replicas": "replicas",
    "admission": "admission",
    "evaluation": "an evaluation",
    "pause": "the end of a pause",
    "disk": "disk space",
    "recovery": "its own recovery",
}
