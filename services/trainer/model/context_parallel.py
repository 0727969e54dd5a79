"""Context parallelism: C ranks share each micro-batch, and each computes a slice of its tokens.

Outside attention a token needs nothing of another, so a rank works on its slice alone. Around
attention an all-to-all turns a slice of the tokens with all heads into all tokens with a slice
of the heads, and back: Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509, section 3.1.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from services.protocol.errors import InvalidInput
from services.trainer.collectives import LONGEST_WAIT
from services.trainer.config import TrainerConfig

FIELD = "trainer.context_parallel"


@dataclass(frozen=True, kw_only=True)
class ContextGroup:
    """The C ranks that share a micro-batch: C in a row of those of one copy of the model.

    T tokens are padded to a multiple of C, and rank c has the c-th of C equal slices.

    Attributes:
        size: C.
        rank: of this process among them.
        ranks: over which they talk; None for C = 1.
    """

    size: int = 1
    rank: int = 0
    ranks: dist.ProcessGroup | None = None

    @classmethod
    def make(cls, config: TrainerConfig) -> "ContextGroup":
        """This rank's group. Collective over all ranks."""
        size = config.context_parallel
        if size == 1:
            return cls()
        ranks, _ = dist.new_subgroups(group_size=size, timeout=LONGEST_WAIT)
        return cls(size=size, rank=dist.get_rank() % size, ranks=ranks)

    @property
    def index(self) -> int:
        """Of this group among all; it says which rows are its own."""
        return dist.get_rank() // self.size

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its group where each micro-batch counts once."""
        return self.rank == 0

    def width(self, tokens: int) -> int:
        """Tokens of each slice of a sequence."""
        return -(-tokens // self.size)

    def own(self, values: Tensor) -> Tensor:
        """This rank's slice of values `[T]`, padded with 0 at the sequence's end."""
        if self.size == 1:
            return values
        width = self.width(len(values))
        padded = torch.nn.functional.pad(values, (0, width * self.size - len(values)))
        return padded[self.rank * width : (self.rank + 1) * width]

    def own_places(self, places: Tensor, tokens: int) -> slice:
        """Which of ascending places `[N]` among `tokens` lie in this rank's slice."""
        if self.size == 1:
            return slice(0, len(places))
        width = self.width(tokens)
        edges = torch.tensor([self.rank * width, (self.rank + 1) * width], device=places.device)
        return slice(*torch.searchsorted(places, edges).tolist())

    def gather(self, values: Tensor, own: slice, count: int) -> Tensor:
        """The values `[count]` of all ranks, from the `own` ones of each. Collective.

        Every rank has the same result and computes the same loss of it; the backward pass takes
        the gradient of the own values alone, so that the ranks' gradients add up to that of one
        loss and not of C.
        """
        if self.ranks is None:
            return values
        whole: Tensor = _Gather.apply(values, own, count, self.ranks)  # type: ignore[no-untyped-call]
        return whole

    def to_heads(
        self, query: Tensor, key: Tensor, value: Tensor, tokens: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[T/C, H, D]`, keys and values `[T/C, K, D]` as `[T, H/C, D]` and so on.

        Where C does not divide K, keys and values are repeated to the least common multiple of
        both, which divides H as both do. Collective.
        """
        times = math.lcm(key.shape[1], self.size) // key.shape[1]
        if times > 1:
            key, value = (one.repeat_interleave(times, 1) for one in (key, value))
        split = [one.unflatten(1, (self.size, -1)) for one in (query, key, value)]
        numbers = [one[0, 0].numel() for one in split]
        sent = torch.cat([one.transpose(0, 1).flatten(2) for one in split], -1)
        whole = self._exchange(sent).flatten(0, 1)[:tokens].split(numbers, -1)
        q, k, v = (
            one.unflatten(-1, before.shape[2:]) for one, before in zip(whole, split, strict=True)
        )
        return q, k, v

    def to_tokens(self, attended: Tensor) -> Tensor:
        """What `[T, H/C, D]` is as `[T/C, H, D]`. Collective."""
        missing = self.width(len(attended)) * self.size - len(attended)
        padded = torch.nn.functional.pad(attended, (0, 0, 0, 0, 0, missing))
        parts = self._exchange(padded.unflatten(0, (self.size, -1)))
        return parts.transpose(0, 1).flatten(1, 2)

    def _exchange(self, parts: Tensor) -> Tensor:
        """Part i of `[C, ...]` to rank i, for its part."""
        received: Tensor = _Exchange.apply(parts, self.ranks)  # type: ignore[no-untyped-call]
        return received


ALONE = ContextGroup()
"""No context parallelism."""


class _Exchange(torch.autograd.Function):
    """All-to-all of equal parts, which is its own transpose.

    Torch has it with a gradient only in `torch.distributed._functional_collectives`.
    """

    @staticmethod
    def forward(ctx: Any, parts: Tensor, ranks: Any) -> Tensor:
        ctx.ranks = ranks
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=ranks)
        return received

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_received: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(by_received, ctx.ranks), None  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """See `ContextGroup.gather`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, own: slice, count: int, ranks: Any) -> Tensor:
        ctx.own = own
        whole = values.new_zeros(count)
        whole[own] = values
        dist.all_reduce(whole, group=ranks)  # every place is 0 on all ranks but one
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_whole: Tensor) -> tuple[Tensor | None, ...]:
        return by_whole[ctx.own], None, None, None


def check_context_parallel(config: TrainerConfig, text: Any) -> None:
    """Refuse a model that context parallelism would compute wrongly.

    Args:
        config: with `context_parallel`.
        text: transformers' configuration of the language model.

    Raises:
        InvalidInput: C does not divide the attention heads.
    """
    size = config.context_parallel
    if size == 1:
        return
    heads = getattr(text, "num_attention_heads", 0)
    if not heads:
        raise InvalidInput(FIELD, size, "The model has no attention heads to divide. Choose 1.")
    if heads % size:
        common = math.gcd(heads, config.shards)
        fits = ", ".join(str(one) for one in range(1, common + 1) if common % one == 0)
        fix = f"It must divide the model's {heads} attention heads; these do: {fits}."
        raise InvalidInput(FIELD, size, fix)
