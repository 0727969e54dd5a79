"""The frozen reference model, which a KL penalty holds the policy to."""

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from services.trainer.collate import MicroBatch
from services.trainer.config import TrainerConfig
from services.trainer.lora import adapter_off
from services.trainer.model import Policy, load_policy


class Reference(Protocol):
    """Gives reference logprobs, wherever they come from."""

    def logprobs(self, micro: MicroBatch, temperature: float, policy: Policy) -> Tensor:
        """Reference logprobs `[N]` of the trained tokens, without gradient. Collective.

        Args:
            micro: the tokens.
            temperature: divides the logits.
            policy: the model in training, whose frozen part may be the reference.
        """


class InitialWeights:
    """The model as the run began: a sharded copy without gradients or an optimizer, or the
    policy with its LoRA adapter turned off."""

    def __init__(self, config: TrainerConfig, mesh: DeviceMesh) -> None:
        self._copy: Policy | None = None
        if config.lora is None:
            self._copy = load_policy(config, mesh, Policy).requires_grad_(False)

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, temperature: float, policy: Policy) -> Tensor:
        """See `Reference`."""
        if self._copy is not None:
            return self._copy(micro, temperature)[0]
        with adapter_off(policy):
            return policy(micro, temperature)[0]
