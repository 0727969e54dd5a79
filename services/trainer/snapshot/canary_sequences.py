"""The canary's sequences: tokens that the policy finds likely.

Of unlikely tokens a logprob is a large number that rounding moves far, whatever the weights, and
attention over random tokens hardly matters to any of them.
"""

import random

import torch
import torch.distributed as dist

from services.trainer.batch.collate import collate_sequences
from services.trainer.model.model import Policy

TOKENS = 32
"""Of each sequence."""
PASSES = 8
"""Forward passes that they are sampled in."""


def canary_sequences(
    policy: Policy, count: int, device: torch.device
) -> tuple[tuple[int, ...], ...]:
    """`count` sequences that begin with a random token and go on as the policy does. Collective.

    All tokens are sampled at once, each with a random number of its own, again and again: after k
    passes the first k are samples given those before them (Jacobi iteration; Santilli et al.,
    arXiv:2305.10427, section 3), and others nearly so.

    Args:
        policy: the weights as they are now.
        count: of sequences; 0 makes none.
        device: on which the policy computes.

    Returns:
        The same on all ranks.
    """
    if not count:
        return ()
    draw = random.Random(f"canary/{policy.vocabulary}")
    tokens = torch.tensor(
        [[draw.randrange(policy.vocabulary) for _ in range(TOKENS)] for _ in range(count)]
    )
    draws = torch.tensor([draw.random() for _ in range(count * (TOKENS - 1))]).to(device)
    with torch.no_grad():
        for _ in range(PASSES):
            micro = collate_sequences(tokens.tolist()).to(device)
            sampled = policy.sample(micro, draws)
            dist.broadcast(sampled, src=0)  # ranks may round in different ways
            tokens[:, 1:] = sampled.reshape(count, TOKENS - 1).cpu()
    policy.reshard_all()
    return tuple(map(tuple, tokens.tolist()))
