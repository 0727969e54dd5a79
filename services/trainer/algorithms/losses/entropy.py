"""The entropy bonus, which keeps a policy from settling on one answer too early."""

from torch import Tensor


def entropy_bonus(entropy: Tensor, coefficient: float) -> Tensor:
    """`-coefficient * H` of each token, with the gradient of the exact entropy.

    PPO, arXiv 1707.06347, equation 9. It is added after the importance correction, like a KL
    penalty, and summed like the rest of the loss.

    Args:
        entropy: `[N]` of the whole next-token distribution, nats, at the sampling temperature.
        coefficient: `algorithm.entropy_bonus`.
    """
    return -coefficient * entropy
