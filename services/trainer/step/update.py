"""The optimizer, and one step of it, made on all ranks or on none."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import TrainerConfig
from services.trainer.model.model import Policy
from services.trainer.offload.host_moments import HostMomentsAdamW
from services.trainer.step.muon import MuonWithAdamW

ParameterGroup = dict[str, Any]
"""Parameters, and what of an optimizer's settings is their own."""


def make_adamw(
    parameters: Sequence[nn.Parameter] | Sequence[ParameterGroup],
    config: TrainerConfig,
    algorithm: AlgorithmConfig,
    *,
    learning_rate: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """AdamW, of the critic too, which steps where the parameters are.

    Of the algorithm it takes betas and epsilon alone.

    Raises:
        InvalidInput: as for `eight_bit_adamw`.
    """
    settings = _settings(algorithm, learning_rate, weight_decay)
    if config.moments == "8bit":
        return eight_bit_adamw("trainer.moments")(parameters, **settings)
    kind = HostMomentsAdamW if config.offload == "optimizer" else torch.optim.AdamW
    return kind(parameters, **settings, fused=True)


def make_optimizer(
    policy: Policy, config: TrainerConfig, algorithm: AlgorithmConfig
) -> torch.optim.Optimizer:
    """The optimizer of the policy.

    Raises:
        InvalidInput: as for `eight_bit_adamw`.
    """
    rate, decay = algorithm.learning_rate, algorithm.weight_decay
    trained = policy.trained_parameters()
    if algorithm.optimizer == "adamw":
        groups = _by_decay(trained, policy, algorithm)
        return make_adamw(groups, config, algorithm, learning_rate=rate, weight_decay=decay)
    matrices = policy.trained_matrices()
    known = set(map(id, matrices))
    others = [one for one in trained if id(one) not in known]
    return MuonWithAdamW(
        matrices,
        _by_decay(others, policy, algorithm),
        momentum=algorithm.momentum,
        fused=True,
        **_settings(algorithm, rate, decay),
    )


def _by_decay(
    parameters: Sequence[nn.Parameter], policy: Policy, algorithm: AlgorithmConfig
) -> list[ParameterGroup]:
    """In one group, or in two of which the second has no weight decay; none is empty."""
    spared = set() if algorithm.weight_decay_on == "all" else set(map(id, _no_matrices(policy)))
    groups: list[ParameterGroup] = [
        {"params": [one for one in parameters if id(one) not in spared]},
        {"params": [one for one in parameters if id(one) in spared], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _no_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """Vectors and embeddings, which a tied output layer shares.

    The biases of a stack of experts have two dimensions, too, so that names tell them.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim < 2 or name.endswith("bias") or isinstance(module, nn.Embedding):
                yield parameter


def _settings(
    algorithm: AlgorithmConfig, learning_rate: float, weight_decay: float
) -> dict[str, Any]:
    return {
        "lr": learning_rate,
        "betas": (algorithm.beta1, algorithm.beta2),
        "eps": algorithm.epsilon,
        "weight_decay": weight_decay,
    }


def eight_bit_adamw(field: str) -> Callable[..., torch.optim.Optimizer]:
    """The optimizer of `moments: 8bit`, for which `field` asks.

    Raises:
        InvalidInput: torchao is not installed.
    """
    try:
        from services.trainer.step.eight_bit_adamw import EightBitAdamW
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "torchao":
            raise
        fix = "They take torchao where the ranks run: `pip install 'millrace[8bit]'`."
        raise InvalidInput(field, "8bit", fix) from None
    return EightBitAdamW


def update(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    wrong: Sequence[Tensor],
    *,
    grad_clip: float,
    held_back: bool = False,
) -> float | None:
    """Clip the gradients, step unless a value is not finite, and drop them. Collective.

    The loss is checked besides the gradient: clipping passes no gradient for a NaN, so a step
    could silently leave out the tokens that are wrong.

    Args:
        optimizer: of the parameters.
        parameters: with reduced gradients.
        wrong: places whose loss was not finite, of each micro-batch.
        grad_clip: largest global gradient norm.
        held_back: change nothing, only measure.

    Returns:
        The gradient norm before clipping; None if it or a loss was not finite.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, grad_clip)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    count = torch.tensor(sum(places.numel() for places in wrong), device=norm.device)
    dist.all_reduce(count)
    finite = bool(torch.isfinite(norm)) and not count.item()
    if finite and not held_back:
        optimizer.step()
    optimizer.zero_grad()
    return norm.item() if finite else None
