"""Advantages for the tokens alone at which the policy was least sure."""

import torch
from torch import Tensor


def of_high_entropy(advantages: Tensor, entropy: Tensor, threshold: float) -> Tensor:
    """`A` where `H >= threshold`, else 0, which has no policy gradient under any loss.

    "Beyond the 80/20 rule", arXiv 2506.01939, section 5: `threshold` is reached by a share of the
    batch's tokens, `algorithm.top_entropy`, all ranks' together; the paper's share is 0.2. The
    entropies are those before the step's first update. Tokens that are left out stay in the
    loss's denominator, as the paper has it, and keep an entropy bonus and a KL penalty in the loss.
    """
    return torch.where(entropy >= threshold, advantages, 0.0)
