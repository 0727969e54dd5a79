"""A model's parameters over the ranks, by FSDP2, and where they wait between its layers' passes."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from services.trainer.config import TrainerConfig


def shard(
    model: nn.Module, parts: Sequence[nn.Module], config: TrainerConfig, mesh: DeviceMesh
) -> None:
    """Shard each of `parts` by itself, and what is left of `model` together, in place."""
    mixed = MixedPrecisionPolicy()
    if config.dtype == "bfloat16":
        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = OffloadPolicy()
    if config.offload == "all":
        # Pinned, so that copies overlap with the passes of other layers.
        offload = CPUOffloadPolicy(pin_memory=config.device != "cpu")
    for module in (*parts, model):
        fully_shard(module, mesh=mesh, mp_policy=mixed, offload_policy=offload)


def shards_device(config: TrainerConfig, device: torch.device) -> torch.device:
    """Where a rank that computes on `device` holds its shards between passes."""
    return torch.device("cpu") if config.offload == "all" else device
