"""The policy loss of each token under a configuration.

Sums over tokens are taken and divided elsewhere, by counts that span ranks and
micro-batches: see `algorithms.aggregation`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.corrections.correction import Correction, correct, mismatch_ratio
from services.trainer.algorithms.corrections.sequence_mask import mask_sequences
from services.trainer.algorithms.losses.cispo import cispo_loss
from services.trainer.algorithms.losses.clip import clipped_surrogate
from services.trainer.algorithms.losses.dppo import dppo_loss
from services.trainer.algorithms.losses.entropy import entropy_bonus
from services.trainer.algorithms.losses.gspo import gspo_surrogate
from services.trainer.algorithms.losses.kl import kl_in_loss
from services.trainer.algorithms.losses.reinforce import reinforce_loss
from services.trainer.algorithms.losses.sapo import sapo_loss
from services.trainer.algorithms.losses.tokens import ScoredTokens, TokenLosses
from services.trainer.algorithms.losses.user_loss import UserLoss, checked_user_loss


@dataclass(frozen=True, kw_only=True)
class PolicyLosses:
    """The loss of each token, with its correction and penalty.

    Attributes:
        tokens: loss and clips.
        corrected: what correction and masks did; None without one.
        kl_penalty: `[N]`, the part of the loss that is the KL penalty, without gradient; None
            without one.
    """

    tokens: TokenLosses
    corrected: Correction | None = None
    kl_penalty: Tensor | None = None


def policy_losses(
    tokens: ScoredTokens,
    algorithm: AlgorithmConfig,
    user_loss: UserLoss | None = None,
    kl_weight: Tensor | None = None,
) -> PolicyLosses:
    """The loss of each token under `algorithm`.

    With `ratio_anchor: behaviour` the clip is centred on the policy that sampled the
    token, so the trust region also covers staleness. With `proximal` it is decoupled PPO
    (arXiv 2110.00641): clip around the proximal policy, times the mismatch weight. Masks of
    whole answers and `loss_coefficient` come next. An entropy bonus and a KL penalty in the loss
    are added after that, so that no mask or cap takes them away.

    Args:
        tokens: logprobs and advantages.
        algorithm: the loss, clip distances and correction.
        user_loss: in place of the built-in one.
        kl_weight: `[N]`, of the KL penalty beside the loss of its token; None for 1.

    Raises:
        ValueError: proximal or reference logprobs or entropies are missing, or the user's
            loss has a wrong shape.
        TypeError: the user's loss is no tensor of floats.
    """
    losses = _masked(_corrected(tokens, algorithm, user_loss), tokens, algorithm)
    if algorithm.loss_coefficient != 1:
        weighed = algorithm.loss_coefficient * losses.tokens.loss
        losses = replace(losses, tokens=replace(losses.tokens, loss=weighed))
    if algorithm.entropy_bonus:
        if tokens.entropy is None:
            raise ValueError("an entropy bonus needs entropies")
        bonus = entropy_bonus(tokens.entropy, algorithm.entropy_bonus)
        losses = replace(losses, tokens=replace(losses.tokens, loss=losses.tokens.loss + bonus))
    if not algorithm.kl.in_loss:
        return losses
    penalty = kl_in_loss(tokens, algorithm.kl)
    added = penalty if kl_weight is None else kl_weight * penalty
    penalised = replace(losses.tokens, loss=losses.tokens.loss + added)
    return replace(losses, tokens=penalised, kl_penalty=penalty.detach())


def _corrected(
    tokens: ScoredTokens, algorithm: AlgorithmConfig, user_loss: UserLoss | None
) -> PolicyLosses:
    if algorithm.ratio_anchor == "behaviour":
        return PolicyLosses(tokens=_losses(tokens, tokens.behaviour, algorithm, user_loss))
    if tokens.proximal is None:
        raise ValueError("ratio_anchor 'proximal' needs proximal logprobs")
    losses = _losses(tokens, tokens.proximal, algorithm, user_loss)
    ratio = mismatch_ratio(tokens, tokens.proximal, algorithm.mismatch_level)
    corrected = correct(ratio, algorithm)
    loss = corrected.weight * losses.loss
    return PolicyLosses(tokens=replace(losses, loss=loss), corrected=corrected)


def _masked(losses: PolicyLosses, tokens: ScoredTokens, algorithm: AlgorithmConfig) -> PolicyLosses:
    masked = mask_sequences(tokens, algorithm.sequence_mask)
    if masked is None:
        return losses
    one = torch.ones_like(masked)
    before = losses.corrected or Correction(weight=one, truncated=one - one, masked=one - one)
    loss = (one - masked) * losses.tokens.loss
    return replace(
        losses,
        tokens=replace(losses.tokens, loss=loss),
        corrected=replace(before, masked=torch.maximum(before.masked, masked)),
    )


def _losses(
    tokens: ScoredTokens, anchor: Tensor, algorithm: AlgorithmConfig, user_loss: UserLoss | None
) -> TokenLosses:
    low, high = algorithm.clip_low, algorithm.clip_high
    if user_loss is not None:
        nothing = torch.zeros_like(tokens.behaviour)
        loss = checked_user_loss(user_loss, tokens, algorithm)
        return TokenLosses(loss=loss, clipped_low=nothing, clipped_high=nothing)
    if algorithm.loss == "clip":
        dual = algorithm.dual_clip
        return clipped_surrogate(tokens.current, anchor, tokens.advantage, low, high, dual)
    if algorithm.loss == "dppo":
        dual = algorithm.dual_clip
        return dppo_loss(tokens.current, anchor, tokens.advantage, low, high, dual)
    if algorithm.loss == "sapo":
        gates = algorithm.gate_positive, algorithm.gate_negative
        return sapo_loss(tokens.current, anchor, tokens.advantage, *gates)
    if algorithm.loss == "gspo":
        return gspo_surrogate(tokens, anchor, low, high)
    if algorithm.loss == "cispo":
        return cispo_loss(tokens.current, anchor, tokens.advantage, low, high)
    if algorithm.loss == "reinforce":
        return reinforce_loss(tokens.current, tokens.advantage)
    raise ValueError(f"loss {algorithm.loss!r} was not loaded")
