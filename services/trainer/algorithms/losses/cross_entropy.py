"""The loss of answers that were given: supervised learning beside the policy's own answers."""

from torch import Tensor


def cross_entropy(current: Tensor, given: Tensor) -> Tensor:
    """`-log p` summed over the tokens of given answers.

    Its normaliser is the number of these tokens in the minibatch, over all ranks, whatever else
    the minibatch holds.

    Args:
        current: `[N]`, logprobs under the weights being trained.
        given: `[N]`, 1 for a token of a given answer, else 0.
    """
    return -(current * given).sum()
