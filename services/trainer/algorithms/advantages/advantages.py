"""Advantages: a trajectory's reward relative to its sample group or batch."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from services.protocol.run.algorithm import AdvantageKind
from services.trainer.algorithms.advantages.best import best_answers
from services.trainer.algorithms.advantages.dr_grpo import dr_grpo_advantages
from services.trainer.algorithms.advantages.grpo import grpo_advantages
from services.trainer.algorithms.advantages.lite_ppo import in_batch_deviations
from services.trainer.algorithms.advantages.maxrl import maxrl_advantages
from services.trainer.algorithms.advantages.reinforce_plus_plus import whitened
from services.trainer.algorithms.advantages.rloo import rloo_advantages

_OF_A_GROUP: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "grpo": grpo_advantages,
    "dr_grpo": dr_grpo_advantages,
    "rloo": rloo_advantages,
    "maxrl": maxrl_advantages,
    "lite_ppo": dr_grpo_advantages,
    "best": best_answers,
    "reinforce_plus_plus_baseline": dr_grpo_advantages,
}
_WITHOUT_BASELINE = {"reinforce_plus_plus", "gae"}
_OVER_THE_BATCH = {"reinforce_plus_plus", "reinforce_plus_plus_baseline", "lite_ppo"}


def group_advantages(rewards: Sequence[float], kind: AdvantageKind) -> list[float]:
    """One advantage per trajectory of a sample group, the same for all of its tokens.

    For the REINFORCE++ kinds and Lite PPO `batch_advantages` normalises it further; for `gae` it
    is the reward. Where the group's mean is subtracted, a group of equal rewards gets exactly
    0.0, whatever rounding does to its mean.

    Args:
        rewards: one per trajectory; at least two where their mean is the baseline.
        kind: as in the configuration.

    Raises:
        ValueError: a group of one has no baseline.
    """
    if kind in _WITHOUT_BASELINE:
        return [float(reward) for reward in rewards]
    if len(rewards) < 2:
        raise ValueError(f"a sample group needs at least two rewards, not {len(rewards)}")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    return _OF_A_GROUP[kind](np.array(rewards, dtype=np.float64)).tolist()


def batch_advantages(
    rewards: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], kind: AdvantageKind
) -> list[list[float]]:
    """One advantage per trajectory of each sample group of a train batch.

    Args:
        rewards: of each group, one per trajectory.
        tokens: how many tokens of each trajectory will be trained; what is normalised over
            the batch is normalised over these.
        kind: as in the configuration.

    Raises:
        ValueError: a group of fewer than two where their mean is the baseline.
    """
    groups = [group_advantages(group, kind) for group in rewards]
    if kind not in _OVER_THE_BATCH:
        return groups
    flat = np.array([value for group in groups for value in group], dtype=np.float64)
    counts = np.array([count for group in tokens for count in group], dtype=np.float64)
    if kind == "lite_ppo" and flat.any():
        of_all = np.array([reward for group in rewards for reward in group], dtype=np.float64)
        flat = in_batch_deviations(flat, of_all)
    elif kind != "lite_ppo" and counts.sum():
        flat = whitened(flat, counts)
    values = iter(flat.tolist())
    return [[next(values) for _ in group] for group in groups]
