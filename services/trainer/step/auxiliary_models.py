"""Further models that an algorithm needs: a reference and a critic."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.kl import KlConfig
from services.trainer.batch.collate import MicroBatch
from services.trainer.checkpoints.checkpoint import Part
from services.trainer.config import TrainerConfig
from services.trainer.model.context_parallel import ContextGroup
from services.trainer.model.lora import adapter_off
from services.trainer.model.model import Policy, load_policy
from services.trainer.step.critic import Critic


class Reference:
    """The model that a KL penalty holds the policy to. Collective.

    It is the model as the run began, the policy at the last refresh, or a moving average of it.
    Under a LoRA adapter it is the policy with the adapter turned off, which takes no memory; else
    it is a sharded model without gradients or an optimizer.

    Attributes:
        model: the sharded model; None under an adapter.
    """

    def __init__(
        self, config: TrainerConfig, mesh: DeviceMesh, context_group: ContextGroup
    ) -> None:
        self.model: Policy | None = None
        if config.lora is None:
            model = load_policy(config, mesh, Policy, context_group)
            self.model = model.requires_grad_(False)

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


@dataclass(frozen=True, kw_only=True)
class AuxiliaryModels:
    """The auxiliary models of one run.

    Attributes:
        reference: with a KL penalty.
        refresh_steps: train steps after which the reference is refreshed, 0 for never.
        refresh_mix: share of the policy in it then.
        critic: with `advantage: gae`.
    """

    reference: Reference | None = None
    refresh_steps: int = 0
    refresh_mix: float = 1.0
    critic: Critic | None = None

    @classmethod
    def load(
        cls,
        algorithm: AlgorithmConfig,
        config: TrainerConfig,
        mesh: DeviceMesh,
        context_group: ContextGroup,
    ) -> "AuxiliaryModels":
        """Load what the algorithm asks for, at the model's initial weights. Collective.

        Raises:
            InvalidInput: the reference is to be refreshed and is no model of its own.
        """
        refresh_steps = _refresh_steps(algorithm.kl, config)
        reference = critic = None
        if algorithm.kl.coefficient > 0:
            reference = Reference(config, mesh, context_group)
        if algorithm.has_critic:
            critic = Critic(algorithm, config, mesh, context_group)
        return cls(
            reference=reference,
            refresh_steps=refresh_steps,
            refresh_mix=algorithm.kl.refresh_mix,
            critic=critic,
        )

    @property
    def _refreshed(self) -> Policy | None:
        return self.reference.model if self.reference and self.refresh_steps else None

    def follow(self, step: int, policy: Policy) -> None:
        """Train step `step` has changed the policy."""
        if self._refreshed is not None and step % self.refresh_steps == 0:
            _mix(policy, self._refreshed, self.refresh_mix)

    def parts(self) -> dict[str, Part]:
        """The parts of a checkpoint: a reference that is never refreshed can be loaded again."""
        kept = {}
        if self._refreshed is not None:
            kept["reference"] = Part(module=self._refreshed.causal)
        if self.critic is not None:
            module = self.critic.model.causal
            kept["critic"] = Part(module=module, optimizer=self.critic.optimizer)
        return kept

    @property
    def models(self) -> tuple[Policy, ...]:
        """All models, those without a checkpoint of their own too."""
        held = (self.reference.model if self.reference else None), self._critic_model
        return tuple(model for model in held if model is not None)

    @property
    def _critic_model(self) -> Policy | None:
        return self.critic.model if self.critic else None

    def reshard_all(self) -> None:
        """Leave only local shards of the parts of a checkpoint."""
        for model in (self._refreshed, self._critic_model):
            if model is not None:
                model.reshard_all()


def _refresh_steps(kl: KlConfig, config: TrainerConfig) -> int:
    if kl.refresh_steps is None:
        return 0
    if config.lora is not None:
        fix = (
            "With trainer.lora the reference is the policy with its adapter turned off, which "
            "cannot become the policy; leave refresh_steps out, or train without lora."
        )
        raise InvalidInput("algorithm.kl.refresh_steps", kl.refresh_steps, fix)
    return kl.refresh_steps


@torch.no_grad()
def _mix(policy: Policy, into: Policy, share: float) -> None:
    """Move `into` by a share of the way to the policy as it is now: each rank its own shards."""
    into.reshard_all()
    policy.reshard_all()
    for held, newer in zip(into.parameters(), policy.parameters(), strict=True):
        if share == 1:
            held.copy_(newer)
        else:
            held.lerp_(newer, share)
