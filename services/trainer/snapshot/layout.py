"""The exported tensors of a policy version, and the buckets that they travel in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from services.protocol.weights.weights import Dtype, TensorSpec, plan_buckets
from services.trainer.config import LoraConfig
from services.trainer.experts.names import CheckpointNames, Part
from services.trainer.model.blank import checkpoint_buffers
from services.trainer.model.lora import ADAPTER_PARAMETERS, PEFT_PREFIX, LoraLinear, lora_layers
from services.trainer.model.model import Policy


@dataclass(frozen=True, kw_only=True)
class ExportedTensor:
    """One tensor of a version.

    Attributes:
        name: in the checkpoint, or in the PEFT format.
        value: a parameter, which has its shape and lies on the ranks as it does; or a buffer,
            which every rank has whole and rank 0 sends.
        merged: the layer whose difference is to be added; None: nothing is.
    """

    name: str
    value: Tensor
    merged: LoraLinear | None = None

    @property
    def divided(self) -> "Divided":
        """How the ranks divide it."""
        shape = tuple(self.value.shape)
        if not isinstance(self.value, DTensor):
            dtype = Dtype(str(self.value.dtype).removeprefix("torch."))
            return Divided(name=self.name, shape=shape, buffer=dtype)
        (dim,) = (one.dim for one in self.value.placements if isinstance(one, Shard))
        return Divided(name=self.name, shape=shape, blocks=math.prod(shape[:dim]))

    @property
    def local(self) -> Tensor:
        """What this rank sends of it, without a difference."""
        if isinstance(self.value, DTensor):
            return self.value.to_local().detach()
        whole = self.value.detach().reshape(-1)
        return whole if dist.get_rank() == 0 else whole[:0]

    def shard(self) -> Tensor:
        """What this rank sends of it, on its device; of a buffer its bytes, which go as they are
        and may begin where its element type may not.

        Collective where a difference is added.
        """
        if self.merged is not None:
            return self.merged.merged_shard()
        return self.local if isinstance(self.value, DTensor) else self.local.view(torch.uint8)


def exported_tensors(policy: Policy, config: LoraConfig | None) -> list[ExportedTensor]:
    """The tensors of a version in wire order: the adapter's, or the model's with it merged.

    Buffers come behind the parameters of their module.
    """
    layers = dict(lora_layers(policy.causal))
    if config is not None and config.push == "adapter":
        return [
            ExportedTensor(name=f"{PEFT_PREFIX}{name}.{kind}.weight", value=getattr(layer, kind))
            for name, layer in layers.items()
            for kind in ADAPTER_PARAMETERS
        ]
    adapted = {f"{name}.weight": layer for name, layer in layers.items()}
    tensors = [
        ExportedTensor(name=name, value=value, merged=adapted.get(name))
        for name, value in chain(
            policy.checkpoint_parameters(), checkpoint_buffers(policy.causal).items()
        )
    ]
    order = {name: place for place, (name, _) in enumerate(policy.causal.named_modules())}
    return sorted(tensors, key=lambda one: order[one.name.rpartition(".")[0]])


@dataclass(frozen=True, kw_only=True)
class Divided:
    """A parameter that ranks divide, or a buffer.

    Attributes:
        name: in the model.
        shape: of the whole.
        blocks: equally large parts, one after another, of each of which the ranks hold consecutive
            parts: as many as experts where ranks hold rows of each.
        buffer: the element type in which a buffer travels; None: it is a parameter.
    """

    name: str
    shape: tuple[int, ...]
    blocks: int = 1
    buffer: Dtype | None = None


def tensor_specs(
    parameters: Sequence[Divided],
    numels: Sequence[Sequence[int]],
    names: CheckpointNames,
    dtype: Dtype,
) -> list[tuple[TensorSpec, ...]]:
    """The checkpoint's tensors in each parameter and buffer.

    Args:
        parameters: in wire order.
        numels: `numels[rank][i]` elements of the i-th are on that rank.
        names: of the checkpoint.
        dtype: in which parameters travel.
    """
    found = []
    for index, one in enumerate(parameters):
        parts = names.parts(one.name, one.shape)
        held = [rank[index] // one.blocks for rank in numels]
        each = len(parts) // one.blocks
        blocks = (parts[first : first + each] for first in range(0, len(parts), each))
        specs = chain.from_iterable(_specs(block, held, one.buffer or dtype) for block in blocks)
        is_buffer = one.buffer is not None
        found.append(tuple(replace(spec, is_buffer=is_buffer) for spec in specs))
    return found


def _specs(parts: Sequence[Part], held: Sequence[int], dtype: Dtype) -> Iterator[TensorSpec]:
    """Of tensors that lie one after another, of which ranks hold so many consecutive elements."""
    ends = list(accumulate(held))
    start = 0
    for name, shape in parts:
        end = start + math.prod(shape)
        yield TensorSpec(
            name=name,
            dtype=dtype,
            shape=shape,
            shard_numels=tuple(
                max(0, min(end, last) - max(start, last - count))
                for last, count in zip(ends, held, strict=True)
            ),
        )
        start = end


class WireLayout:
    """The parameters and buffers, and the tensors of the checkpoint, in each bucket.

    A bucket holds whole parameters, each with all tensors of the checkpoint that it contains.

    Attributes:
        tensors: every tensor of the checkpoint, in the order in which they travel.
        buckets: half-open ranges of indexes into `tensors`.
        parameters: the same buckets as ranges of indexes into what the model holds.
        held: the range of indexes into `tensors` of what each of these contains.
    """

    def __init__(self, held: Sequence[tuple[TensorSpec, ...]], target_bytes: int) -> None:
        """`held[i]` are the tensors in parameter i."""
        self.tensors = tuple(chain.from_iterable(held))
        firsts = [0, *accumulate(len(specs) for specs in held)]
        self.held = tuple(pairwise(firsts))
        of_first = {first: index for index, first in enumerate(firsts)}
        # Only a bucket that ends where a parameter ends can be copied from parameters.
        ends = [last for _, last in plan_buckets(self.tensors, target_bytes) if last in of_first]
        starts = [0, *ends[:-1]]
        self.buckets = tuple(zip(starts, ends, strict=True))
        self.parameters = tuple((of_first[first], of_first[last]) for first, last in self.buckets)
