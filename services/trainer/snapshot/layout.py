"""The exported tensors of a policy version, and the buckets that they travel in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from services.protocol.weights.weights import Dtype, TensorSpec, plan_buckets
from services.trainer.config import LoraConfig
from services.trainer.experts.names import CheckpointNames, Part
from services.trainer.model.lora import ADAPTER_PARAMETERS, PEFT_PREFIX, LoraLinear, lora_layers
from services.trainer.model.model import Policy


@dataclass(frozen=True, kw_only=True)
class ExportedTensor:
    """One tensor of a version.

    Attributes:
        name: in the checkpoint, or in the PEFT format.
        parameter: has its shape, and lies on the ranks as it does.
        merged: the layer whose difference is to be added; None: nothing is.
    """

    name: str
    parameter: DTensor
    merged: LoraLinear | None = None

    @property
    def divided(self) -> "Divided":
        """How the ranks divide it."""
        shape = tuple(self.parameter.shape)
        (dim,) = (one.dim for one in self.parameter.placements if isinstance(one, Shard))
        return Divided(name=self.name, shape=shape, blocks=math.prod(shape[:dim]))

    def shard(self) -> Tensor:
        """This rank's part, on its device. Collective where a difference is added."""
        if self.merged is not None:
            return self.merged.merged_shard()
        return self.parameter.to_local().detach()


def exported_tensors(policy: Policy, config: LoraConfig | None) -> list[ExportedTensor]:
    """The tensors of a version in wire order: the adapter's, or the model's with it merged."""
    layers = dict(lora_layers(policy.causal))
    if config is not None and config.push == "adapter":
        return [
            ExportedTensor(
                name=f"{PEFT_PREFIX}{name}.{kind}.weight", parameter=getattr(layer, kind)
            )
            for name, layer in layers.items()
            for kind in ADAPTER_PARAMETERS
        ]
    adapted = {f"{name}.weight": layer for name, layer in layers.items()}
    return [
        ExportedTensor(name=name, parameter=parameter, merged=adapted.get(name))
        for name, parameter in policy.checkpoint_parameters()
    ]


@dataclass(frozen=True, kw_only=True)
class Divided:
    """A parameter that ranks divide.

    Attributes:
        name: in the model.
        shape: of the whole.
        blocks: equally large parts, one after another, of each of which the ranks hold consecutive
            parts: as many as experts where ranks hold rows of each.
    """

    name: str
    shape: tuple[int, ...]
    blocks: int = 1


def tensor_specs(
    parameters: Sequence[Divided],
    numels: Sequence[Sequence[int]],
    names: CheckpointNames,
    dtype: Dtype,
) -> list[tuple[TensorSpec, ...]]:
    """The checkpoint's tensors in each parameter.

    `numels[rank][i]` elements of parameter i are on that rank.
    """
    found = []
    for index, one in enumerate(parameters):
        parts = names.parts(one.name, one.shape)
        held = [rank[index] // one.blocks for rank in numels]
        each = len(parts) // one.blocks
        blocks = (parts[first : first + each] for first in range(0, len(parts), each))
        found.append(tuple(chain.from_iterable(_specs(block, held, dtype) for block in blocks)))
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
    """The parameters, and the tensors of the checkpoint, in each bucket.

    A bucket holds whole parameters, each with all tensors of the checkpoint that it contains.

    Attributes:
        tensors: every tensor of the checkpoint, in the order in which they travel.
        buckets: half-open ranges of indexes into `tensors`.
        parameters: the same buckets as ranges of indexes into the model's parameters.
        held: for each parameter, the range of indexes into `tensors` of those that it contains.
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
