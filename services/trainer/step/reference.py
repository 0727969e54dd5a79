"""The reference model, which a KL penalty holds the policy to."""

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from services.trainer.batch.collate import MicroBatch
from services.trainer.config import TrainerConfig
from services.trainer.model.lora import adapter_off
from services.trainer.model.model import Policy, load_policy


class Reference(Protocol):
    """Gives reference logprobs, wherever they come from."""

    def logprobs(self, micro: MicroBatch, temperature: float, policy: Policy) -> Tensor:
        """Reference logprobs `[N]` of the trained tokens, without gradient. Collective.

        Args:
            micro: the tokens.
            temperature: divides the logits.
            policy: the model in training, whose frozen part may be the reference.
        """


class OwnCopy:
    """A sharded model without gradients or an optimizer, at first the one the run begins with.

    Attributes:
        model: it.
    """

    def __init__(self, config: TrainerConfig, mesh: DeviceMesh) -> None:
        self.model = load_policy(config, mesh, Policy).requires_grad_(False)

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, temperature: float, policy: Policy) -> Tensor:
        """See `Reference`."""
        return self.model(micro, temperature)[0]

    @torch.no_grad()
    def refresh(self, policy: Policy) -> None:
        """Become the policy as it is now: each rank copies its own shards."""
        self.model.reshard_all()
        policy.reshard_all()
        for held, newer in zip(self.model.parameters(), policy.parameters(), strict=True):
            held.copy_(newer)


class AdapterOff:
    """The policy with its LoRA adapter turned off: the model as the run began, at no memory."""

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, temperature: float, policy: Policy) -> Tensor:
        """See `Reference`."""
        with adapter_off(policy):
            return policy(micro, temperature)[0]
