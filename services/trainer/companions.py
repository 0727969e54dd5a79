"""The models beside the policy that an algorithm asks for."""

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh

from services.protocol.algorithm import AlgorithmConfig
from services.trainer.checkpoint import Part
from services.trainer.config import TrainerConfig
from services.trainer.critic import Critic
from services.trainer.reference import InitialWeights, Reference


@dataclass(frozen=True, kw_only=True)
class Companions:
    """Those of one run.

    Attributes:
        reference: with a KL penalty.
        critic: with `advantage: gae`.
    """

    reference: Reference | None = None
    critic: Critic | None = None

    @classmethod
    def load(
        cls, algorithm: AlgorithmConfig, config: TrainerConfig, mesh: DeviceMesh
    ) -> "Companions":
        """Load what the algorithm asks for, at the model's initial weights. Collective."""
        penalised = algorithm.kl.coefficient > 0
        return cls(
            reference=InitialWeights(config, mesh) if penalised else None,
            critic=Critic(algorithm.critic, config, mesh) if algorithm.has_critic else None,
        )

    def parts(self) -> dict[str, Part]:
        """What a checkpoint has to keep of them."""
        if self.critic is None:
            return {}
        return {"critic": Part(module=self.critic.model.causal, optimizer=self.critic.optimizer)}

    def reshard_all(self) -> None:
        """Leave only local shards of what a checkpoint keeps."""
        if self.critic is not None:
            self.critic.model.reshard_all()
