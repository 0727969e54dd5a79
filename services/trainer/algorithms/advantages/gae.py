"""Generalised advantage estimation, and the returns that come with it."""

import torch
from torch import Tensor


def gae(
    rewards: Tensor, values: Tensor, sequence: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """`A_t = d_t + gamma lambda A_{t+1}` with `d_t = r_t + gamma V_{t+1} - V_t`, and `A + V`.

    arXiv 1506.02438, equations 11, 12 and 16. Steps are the trained tokens of an answer:
    what a tool wrote between them is skipped, so that the value after a token is that of the
    next token that the policy sampled. After the last one it is 0, also where the length
    limit cut the answer off: the limit is part of the task, and the answer got its reward as
    it stands.

    The critic learns the returns as they are. Advantages are then brought to mean 0 and variance
    1 over the trained tokens of the whole batch, all ranks', as is usual for PPO.

    With values of 0 and lambda 1 both results are the discounted sums of rewards to come.

    Args:
        rewards: `[N]`, tokens of a sequence in order and next to each other.
        values: `[N]`, of the state before each token.
        sequence: int64 `[N]`, the sequence of each token, never falling.
        gamma: discount per token.
        gae_lambda: 0 trusts the values, 1 the rewards.

    Returns:
        float64 advantages and returns `[N]`, without gradient, on the CPU.
    """
    rewards, values = rewards.detach().double().cpu(), values.detach().double().cpu()
    lengths = torch.unique_consecutive(sequence.cpu(), return_counts=True)[1]
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    column = torch.arange(len(rewards)) - (lengths.cumsum(0) - lengths)[row]
    following = torch.zeros_like(values)
    following[:-1] = torch.where(row[1:] == row[:-1], values[1:], 0.0)
    # Laid out as rows padded on the right with 0, which adds nothing to what is before it.
    errors = rewards.new_zeros(len(lengths), int(lengths.max()))
    errors[row, column] = rewards + gamma * following - values
    for place in range(errors.shape[1] - 2, -1, -1):
        errors[:, place] += gamma * gae_lambda * errors[:, place + 1]
    advantages = errors[row, column]
    return advantages, advantages + values
