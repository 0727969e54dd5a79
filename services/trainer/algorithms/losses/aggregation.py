"""From losses of tokens to the loss of a minibatch.

Every aggregation is `sum_t share_t loss_t / denominator`. The denominator counts the whole
minibatch, over all ranks and micro-batches, before the first forward pass, so that the
result depends neither on the number of ranks nor on how the work was cut. Each component of the
loss can have a mean of its own: given answers have theirs, and a KL penalty may (`kl.aggregation`).
"""

import torch
from torch import Tensor

from services.protocol.run.algorithm import AlgorithmConfig


def token_shares(weight: Tensor, sequence: Tensor, lengths: Tensor, aggregation: str) -> Tensor:
    """The weight of each token before the division by `denominator`.

    - `token_mean`: 1, so that the loss is `sum / N` (DAPO, arXiv 2503.14476, section 3.3).
    - `sequence_mean`: `1 / |o_i|`, so that it is `mean_i(mean_t(loss))` (GRPO, arXiv
      2402.03300, equation 3).
    - `fixed_length`: 1, for `sum / (S * fixed_length)` (Dr. GRPO, arXiv 2503.20783,
      section 3.2).

    Args:
        weight: `[N]`, 1; 0 for what only fills a forward pass.
        sequence: int64 `[N]`, the sequence of each token.
        lengths: `[S]`, tokens of each sequence that the policy sampled, `|o_i|`.
        aggregation: which of the three.
    """
    if aggregation != "sequence_mean":
        return weight
    return weight / lengths[sequence]


def denominator(tokens: int, sequences: int, algorithm: AlgorithmConfig) -> int:
    """`tokens`, `sequences` or `sequences * fixed_length`.

    Tokens that a mask takes out of the loss, as too old or as too far from the engine, stay in
    the count, some of an answer or all of it, else what is left would weigh more. Groups of equal
    rewards are not counted: as under DAPO's dynamic sampling (arXiv 2503.14476, equation 11)
    they are not part of the batch, unless a KL penalty, an entropy bonus, a teacher, a critic or
    REINFORCE++ gives them a gradient. Answers in which the policy sampled nothing and those that
    `mask_truncated` leaves out are not counted either.
    """
    if algorithm.aggregation == "token_mean":
        return tokens
    if algorithm.aggregation == "sequence_mean":
        return sequences
    assert algorithm.fixed_length is not None, "the configuration asks for it"
    return sequences * algorithm.fixed_length


def kl_weight(
    sequence: Tensor, lengths: Tensor, tokens: int, sequences: int, algorithm: AlgorithmConfig
) -> Tensor | None:
    """`(own share / own denominator) / (share / denominator)` of each token, for `kl.aggregation`.

    Times this the penalty of a token, which is summed with its loss, has a mean of its own. None
    where it is averaged as the loss is.

    Args:
        sequence: int64 `[N]`, the sequence of each token.
        lengths: as for `token_shares`.
        tokens: of the minibatch, as for `denominator`.
        sequences: of the minibatch, likewise.
        algorithm: which means.
    """
    own = algorithm.kl.aggregation
    if own is None or own == algorithm.aggregation or not tokens:
        return None
    each = torch.ones_like(lengths)[sequence]
    share = token_shares(each, sequence, lengths, algorithm.aggregation)
    own_share = token_shares(each, sequence, lengths, own)
    counted = tokens if own == "token_mean" else sequences
    return own_share / share * (denominator(tokens, sequences, algorithm) / counted)
