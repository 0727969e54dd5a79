"""The learning rate of each update of a run."""

import math

from services.protocol.run.algorithm import AlgorithmConfig


def learning_rate(algorithm: AlgorithmConfig, update: int, updates: int) -> float:
    """Of an update, after a linear warm-up and before or within the decay.

    Args:
        algorithm: `learning_rate`, `warmup_steps` and the `decay` keys.
        update: its number, from 0.
        updates: how many the run is to make.
    """
    warmup, decay = algorithm.warmup_steps, algorithm.decay
    rate = algorithm.learning_rate * (min(1.0, (update + 1) / warmup) if warmup else 1.0)
    if decay == "none":
        return rate
    last = algorithm.decay_steps
    begins = warmup if last is None else max(warmup, updates - last)
    passed = min(1.0, max(0.0, (update - begins) / max(1, updates - begins)))
    left = 1.0 - passed if decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * passed))
    return rate * (algorithm.decay_to + (1.0 - algorithm.decay_to) * left)
