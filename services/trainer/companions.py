"""The models beside the policy that an algorithm asks for."""

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh

from services.protocol.algorithm import AlgorithmConfig
from services.trainer.config import TrainerConfig
from services.trainer.reference import FrozenCopy, Reference


@dataclass(frozen=True, kw_only=True)
class Companions:
    """Those of one run.

    Attributes:
        reference: with a KL penalty.
    """

    reference: Reference | None = None

    @classmethod
    def load(
        cls, algorithm: AlgorithmConfig, config: TrainerConfig, mesh: DeviceMesh
    ) -> "Companions":
        """Load what the algorithm asks for, at the model's initial weights. Collective."""
        penalised = algorithm.kl.coefficient > 0
        return cls(reference=FrozenCopy(config, mesh) if penalised else None)
