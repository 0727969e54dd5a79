"""Memory of an engine, on its GPUs and on the host, and of the relay that feeds it."""

from dataclasses import dataclass

from services.rollout_server.config import RolloutServerConfig
from services.trainer.sizing.rank_memory import GIB
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import ITEMSIZE

ENGINE_GIB = 4.0
"""Memory that vLLM needs of a GPU beside weights and KV cache: activations, CUDA graphs, NCCL."""
WORKER_GIB = 4.0
"""Host memory of one process of vLLM with a CUDA context, its weights left out."""
RELAY_GIB = 0.5
"""Host memory of a relay's process, its weights left out: 0.36 measured after its imports."""
RELAY_VERSIONS = 2
"""The version that replicas load, and the next one, which arrives meanwhile."""


@dataclass(frozen=True, kw_only=True)
class EngineMemory:
    """One model in one engine.

    Attributes:
        shape: of the model.
        rollout: the engine's settings.
        gpu_gib: memory of a GPU.
        relays: whether a relay on each node holds the weights for its engines.
    """

    shape: ModelShape
    rollout: RolloutServerConfig
    gpu_gib: float
    relays: bool = True

    @property
    def weights_gib(self) -> float:
        """The model, over the engine's GPUs."""
        assert self.shape.parameters is not None
        return self.shape.parameters * ITEMSIZE[self.rollout.dtype] / GIB

    @property
    def worker_weights_gib(self) -> float:
        """The model's part on one GPU."""
        return self.weights_gib / self.rollout.tensor_parallel_size

    @property
    def kv_gib(self) -> float:
        """Memory for the KV cache, over the engine's GPUs."""
        taken = self.gpu_gib * self.rollout.gpu_memory_utilization
        return self.rollout.tensor_parallel_size * (taken - ENGINE_GIB) - self.weights_gib

    @property
    def kv_tokens(self) -> int:
        """Tokens in the KV cache."""
        each = self.shape.kv_bytes(ITEMSIZE[self.rollout.dtype])
        return max(0, int(self.kv_gib * GIB / each))

    @property
    def staged_versions(self) -> int:
        """Versions that the engine holds in host memory: with a relay none, otherwise the next one
        for all its workers, and the one that is served with `keep_copy`."""
        if self.relays:
            return 0
        return 2 if self.rollout.keep_copy else 1

    @property
    def host_gib(self) -> float:
        """Host memory of the engine."""
        workers = self.rollout.tensor_parallel_size
        return self.staged_versions * self.weights_gib + workers * WORKER_GIB

    @property
    def relay_gib(self) -> float:
        """Host memory of a node's relay, whatever the number of its engines; 0 without one."""
        return RELAY_VERSIONS * self.weights_gib + RELAY_GIB if self.relays else 0.0
