"""The loss of a critic."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ValueLosses:
    """The loss of each token's value, and where the clip acted.

    Attributes:
        loss: `[N]`, to be minimised, carries the gradient.
        clipped: `[N]`, 1 where the clipped value's loss is the larger one, else 0.
    """

    loss: Tensor
    clipped: Tensor


def value_loss(
    values: Tensor, held_values: Tensor, returns: Tensor, clip: float | None
) -> ValueLosses:
    """`max((V - R)^2, (H + clip(V - H, -c, c) - R)^2) / 2`, H the value at the step's start.

    The squared error of PPO, arXiv 1707.06347, equation 9, with the clip of its authors' code
    (Engstrom et al., arXiv 2005.12729, section 3); without a clip `(V - R)^2 / 2`. A value that
    has already moved further than `c` towards its return gets no gradient. Averaged over the
    tokens of the minibatch.
    """
    error = (values - returns).square()
    if clip is None:
        return ValueLosses(loss=0.5 * error, clipped=torch.zeros_like(held_values))
    near = held_values + (values - held_values).clamp(-clip, clip)
    bounded = (near - returns).square()
    # Within the clip the two are equal but for rounding.
    clipped = ((values - held_values).abs() > clip) & (bounded > error)
    return ValueLosses(loss=0.5 * torch.maximum(error, bounded), clipped=clipped.to(error.dtype))
