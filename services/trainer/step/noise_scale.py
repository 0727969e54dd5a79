"""The gradient noise scale: beyond how many answers an update gains little from more."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

_LEAST_SIGNAL = 1e-3
"""Of the gradient's square: less is lost in rounding and in the moments' own noise."""


def gradient_noise_scale(optimizer: torch.optim.Optimizer, answers: float) -> float | None:
    """`B S / |G|^2`, with `G` the mean of the gradient and `S` the trace of its covariance.

    That is the simple noise scale of McCandlish et al. (arXiv 1812.06162, equation 2.9), with `S`
    of updates of `B` answers. Both come from AdamW's moments, after correction of their bias: the
    sum of the second is `|G|^2 + S`, and the squared norm of the first is `|G|^2 + c S`, where
    `c = (1 - b) / (1 + b) * (1 + b^t) / (1 - b^t)` after `t` updates with `b = beta1`. Gradients of
    the newest `1 / (1 - beta2)` updates are taken for draws of one distribution, so that weights
    that move fast make the scale too large. Collective.

    Args:
        optimizer: with or without sharded state.
        answers: of an update, `B`.

    Returns:
        In answers. None where it is above 1,000 `B` (noise that hides the signal), before the
        second update, and with another optimizer than an AdamW whose float32 moments are beside
        their parameters.
    """
    if type(optimizer) is not torch.optim.AdamW:  # kinds of it have other moments, or elsewhere
        return None
    states = [state for state in optimizer.state.values() if state]
    updates = states[0]["step"].item() if states else 0
    if updates < 2:
        return None
    beta1, beta2 = optimizer.param_groups[0]["betas"]
    mean = _whole(get_total_norm([one["exp_avg"] for one in states])) ** 2
    square = _whole(get_total_norm([one["exp_avg_sq"] for one in states], norm_type=1.0))
    mean /= (1 - beta1**updates) ** 2
    square /= 1 - beta2**updates
    share = (1 - beta1) / (1 + beta1) * (1 + beta1**updates) / (1 - beta1**updates)
    noise, signal = square - mean, mean - share * square  # both times 1 - share
    return answers * max(noise, 0.0) / signal if signal > _LEAST_SIGNAL * square else None


def _whole(norm: Tensor) -> float:
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
