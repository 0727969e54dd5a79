"""Which parameters, and which tensors of the checkpoint, make each bucket."""

from collections.abc import Sequence
from itertools import accumulate, chain

from services.protocol.weights.weights import TensorSpec, plan_buckets


class WireLayout:
    """Buckets in two countings; a parameter, with all tensors it holds, is in one bucket.

    Attributes:
        tensors: every tensor of the checkpoint, in the order in which they travel.
        buckets: half-open ranges of indexes into `tensors`.
        parameters: the same buckets as ranges of indexes into the model's parameters.
    """

    def __init__(self, held: Sequence[tuple[TensorSpec, ...]], target_bytes: int) -> None:
        """`held[i]` are the tensors in parameter i."""
        self.tensors = tuple(chain.from_iterable(held))
        firsts = [0, *accumulate(len(specs) for specs in held)]
        of_first = {first: index for index, first in enumerate(firsts)}
        # Only a bucket that ends where a parameter ends can be copied from parameters.
        ends = [last for _, last in plan_buckets(self.tensors, target_bytes) if last in of_first]
        starts = [0, *ends[:-1]]
        self.buckets = tuple(zip(starts, ends, strict=True))
        self.parameters = tuple((of_first[first], of_first[last]) for first, last in self.buckets)
