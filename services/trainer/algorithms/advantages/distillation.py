"""The advantage that a teacher gives to each token, from its logprob and the policy's."""

import torch
from torch import Tensor

from services.protocol.run.distillation import DistillationConfig
from services.trainer.algorithms.log_ratio import LOG_RATIO_LIMIT


def distillation_advantage(
    acted: Tensor, teacher: Tensor, distillation: DistillationConfig
) -> Tensor:
    """Minus the slope of a divergence of policy `S` and teacher `T`, per sampled token.

    With `u = T / S`, a divergence `E_S[f(u)]` has the gradient
    `E_S[(f(u) - u f'(u)) grad log S]`, so that the advantage `u f'(u) - f(u)` makes a policy
    gradient follow it down.

    - `reverse_kl`, `KL(S || T)`: `log u`, without a discount, as in "On-Policy Distillation"
      (Thinking Machines, 2025, thinkingmachines.ai/blog/on-policy-distillation). With the policy
      and more context as `T` it is the gradient of SDFT, arXiv 2601.19897, from one sample.
    - `jensen_shannon`, `beta KL(T || M) + (1 - beta) KL(S || M)` with
      `M = beta T + (1 - beta) S` (GKD, arXiv 2306.13649, section 2): `(1 - beta) log(M / S)`.

    Args:
        acted: `[N]`, logprobs of the policy: as it sampled or, where older weights did, as it is
            before the update.
        teacher: `[N]`, the teacher's logprobs of the same tokens.
        distillation: which divergence.
    """
    gap = (teacher - acted).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if distillation.divergence == "reverse_kl":
        return gap
    beta = distillation.beta
    return (1.0 - beta) * torch.log1p(beta * torch.expm1(gap))
