"""Bytes that a rank leaves on a shared GPU while the engine samples, and those that wait."""

from services.trainer.sizing import held
from services.trainer.sizing.training import Training

KEPT = ("none", "parameters", "all")
"""Values of `trainer.kept_on_gpu`, the smallest first."""


def kept(training: Training) -> float:
    """What `kept_on_gpu` leaves on the GPU: nothing, the policy's parameters, or all that a rank
    holds between steps."""
    return {
        "none": 0.0,
        "parameters": held.parameters(training),
        "all": held.between_steps(training),
    }[training.trainer.kept_on_gpu]


def parked(training: Training) -> float:
    """What goes to pinned host memory for a sampling turn; nothing where the GPU is the rank's."""
    if training.trainer.placement == "separate":
        return 0.0
    return held.between_steps(training) - kept(training)
