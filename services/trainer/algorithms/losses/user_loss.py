"""A loss of the user's own: one function in a file or a module.

It takes `(tokens: ScoredTokens, algorithm: AlgorithmConfig)` and returns the loss of each
token, a tensor of the shape of `tokens.current` that carries its gradient. Corrections,
aggregation, clipping of the gradient and diagnostics are applied as to any other loss.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.losses.tokens import ScoredTokens

UserLoss = Callable[[ScoredTokens, AlgorithmConfig], Tensor]

_FIELD = "algorithm.loss"


def load_user_loss(algorithm: AlgorithmConfig, *, allowed: bool = True) -> UserLoss | None:
    """The function that `algorithm.loss` names, tried on a few tokens; None for a built-in.

    `/absolute/path.py:function` is read anew each time; `package.module:function` is
    imported from the trainer's Python path.

    Raises:
        InvalidInput: it is not `allowed`, cannot be imported, is no function, or returns
            anything but one finite loss per token with a gradient.
    """
    spec = algorithm.loss
    place, found, name = spec.rpartition(":")
    if not found:
        return None
    if not allowed:
        fix = "It is code, which this trainer runs only with user_losses: true in its args."
        raise InvalidInput(_FIELD, spec, fix)
    try:
        is_file = place.endswith(".py")
        module = _from_file(Path(place)) if is_file else importlib.import_module(place)
    except Exception as error:  # the user's code may raise anything
        raise InvalidInput(_FIELD, spec, f"It cannot be imported: {_said(error)}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInput(_FIELD, spec, f"{place} has no function {name!r}.")
    _try(function, algorithm)
    return function


def checked_user_loss(
    function: UserLoss, tokens: ScoredTokens, algorithm: AlgorithmConfig
) -> Tensor:
    """Call it, and make sure of the type and shape of the result.

    Raises:
        TypeError: not a tensor of floats.
        ValueError: not one number per token.
    """
    loss = function(tokens, algorithm)
    if not isinstance(loss, Tensor) or not loss.is_floating_point():
        got = loss.dtype if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"{algorithm.loss} returned {got} instead of a tensor of floats")
    if loss.shape != tokens.current.shape:
        raise ValueError(
            f"{algorithm.loss} returned shape {list(loss.shape)} for "
            f"{tokens.current.numel()} tokens; it must return one loss per token, unsummed"
        )
    return loss


def _from_file(path: Path) -> ModuleType:
    if not path.is_absolute():
        raise ValueError(f"{path} is relative; the trainer needs an absolute path")
    name = f"millrace_user_loss_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _try(function: UserLoss, algorithm: AlgorithmConfig) -> None:
    """Three tokens of one answer and two of another, before a run begins."""
    current = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0], requires_grad=True)
    other = current.detach() - torch.tensor([0.1, 0.0, -0.2, 0.05, 0.0])
    tokens = ScoredTokens(
        current=current,
        behaviour=other,
        advantage=torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5]),
        sequence=torch.tensor([0, 0, 0, 1, 1]),
        sequences=2,
        proximal=other.clone() if algorithm.ratio_anchor == "proximal" else None,
        reference=other.clone() if algorithm.kl.coefficient else None,
        entropy=-current.detach(),
    )
    try:
        loss = checked_user_loss(function, tokens, algorithm)
        if not loss.requires_grad:
            raise ValueError("its result does not depend on tokens.current")
        loss.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # the user's code may raise anything
        raise InvalidInput(
            _FIELD, algorithm.loss, f"It failed on five tokens: {_said(error)}."
        ) from error
    gradient = torch.zeros(()) if current.grad is None else current.grad
    if not bool(loss.isfinite().all() and gradient.isfinite().all()):
        raise InvalidInput(_FIELD, algorithm.loss, "It is not finite on five ordinary tokens.")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
