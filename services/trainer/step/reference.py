"""The reference model, which a KL penalty holds the policy to."""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from services.trainer.batch.collate import MicroBatch
from services.trainer.config import TrainerConfig
from services.trainer.model.lora import adapter_off
from services.trainer.model.model import Policy, load_policy


class Reference:
    """The model as the run began, or as the policy was at the last refresh. Collective.

    Under a LoRA adapter it is the policy with the adapter turned off, which takes no memory.
    Else it is a sharded model without gradients or an optimizer.

    Attributes:
        model: the sharded model; None under an adapter.
    """

    def __init__(self, config: TrainerConfig, mesh: DeviceMesh) -> None:
        self.model: Policy | None = None
        if config.lora is None:
            self.model = load_policy(config, mesh, Policy).requires_grad_(False)

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, temperature: float, policy: Policy) -> Tensor:
        """Reference logprobs `[N]` of the trained tokens, without gradient.

        Args:
            micro: the tokens.
            temperature: divides the logits.
            policy: the model in training, whose frozen part may be the reference.
        """
        if self.model is not None:
            return self.model(micro, temperature)[0]
        with adapter_off(policy):
            return policy(micro, temperature)[0]


@torch.no_grad()
def copy_policy(policy: Policy, to: Policy) -> None:
    """Make `to` equal to the policy as it is now: each rank copies its own shards."""
    to.reshard_all()
    policy.reshard_all()
    for held, newer in zip(to.parameters(), policy.parameters(), strict=True):
        held.copy_(newer)
