"""A model's parameters over the ranks, by FSDP2, and where they wait between its layers' passes."""

from collections.abc import Collection, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from services.trainer.config import TrainerConfig


def shard(
    model: nn.Module,
    parts: Sequence[nn.Module],
    config: TrainerConfig,
    mesh: DeviceMesh,
    stacks: Collection[nn.Parameter] = (),
) -> None:
    """Shard each of `parts` by itself, and what is left of `model` together, in place.

    Parameters are divided along their first dimension. One of `stacks` whose first dimension the
    ranks do not divide evenly is divided along its second, if they divide that one: of 8 experts
    over 16 ranks half the ranks would hold nothing, and the others twice their part.
    """
    ids = {id(one) for one in stacks}

    def placement(parameter: nn.Parameter) -> Shard | None:
        if id(parameter) not in ids:
            return None
        first, second = (size % config.shards == 0 for size in parameter.shape[:2])
        return Shard(1) if second and not first else None

    mixed = MixedPrecisionPolicy()
    if config.dtype == "bfloat16":
        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = OffloadPolicy()
    if config.offload == "all":
        # Pinned, so that copies overlap with the passes of other layers.
        offload = CPUOffloadPolicy(pin_memory=config.device != "cpu")
    for module in (*parts, model):
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=mixed,
            offload_policy=offload,
            shard_placement_fn=placement,
        )


def shards_device(config: TrainerConfig, device: torch.device) -> torch.device:
    """Where a rank that computes on `device` holds its shards between passes."""
    return torch.device("cpu") if config.offload == "all" else device
