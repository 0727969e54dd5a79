"""The frozen reference model, which a KL penalty holds the policy to."""

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from services.trainer.collate import MicroBatch
from services.trainer.config import TrainerConfig
from services.trainer.model import load_policy


class Reference(Protocol):
    """Gives reference logprobs, wherever they come from."""

    def logprobs(self, micro: MicroBatch, temperature: float) -> Tensor:
        """Reference logprobs `[N]` of the trained tokens, without gradient. Collective."""


class FrozenCopy:
    """A sharded copy of the model's initial weights, with neither gradients nor an optimizer."""

    def __init__(self, config: TrainerConfig, mesh: DeviceMesh) -> None:
        self._model = load_policy(config, mesh).requires_grad_(False)

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, temperature: float) -> Tensor:
        """See `Reference`."""
        return self._model(micro, temperature)[0]
