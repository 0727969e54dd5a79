"""The inputs and the result of a loss: one number per response token."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ScoredTokens:
    """The N trained tokens of some sequences, laid flat; no sequence is split.

    Logprobs are natural logs, at the temperature that was sampled with.

    Attributes:
        current: `[N]`, under the weights being trained; the only one with a gradient.
        behaviour: `[N]`, from the engine that sampled.
        advantage: `[N]`.
        sequence: int64 `[N]`, the sequence of each token, below `sequences`.
        sequences: how many sequences there are.
        proximal: `[N]`, recomputed at the start of the train step; None unless
            `ratio_anchor` is `proximal`.
        reference: `[N]`, of the frozen reference model; None without one.
        entropy: `[N]`, of the current policy at each token, nats; it has a gradient where
            there is an entropy bonus.
    """

    current: Tensor
    behaviour: Tensor
    advantage: Tensor
    sequence: Tensor
    sequences: int
    proximal: Tensor | None = None
    reference: Tensor | None = None
    entropy: Tensor | None = None

    def sum_by_sequence(self, values: Tensor) -> Tensor:
        """`[N]` values summed over each sequence, laid out over its tokens again."""
        sums = values.new_zeros(self.sequences).index_add(0, self.sequence, values)
        return sums[self.sequence]

    def mean_by_sequence(self, values: Tensor) -> Tensor:
        """`[N]` values averaged over each sequence, laid out over its tokens again."""
        return self.sum_by_sequence(values) / self.sum_by_sequence(torch.ones_like(values))


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """The loss of each token, and what the clip did.

    Attributes:
        loss: to be minimised, carries the gradient.
        clipped_low: 1 where the lower clip acted on the gradient, else 0.
        clipped_high: the same for the upper clip.
    """

    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
