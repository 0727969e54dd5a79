"""Diagnostics of a train step: sums over tokens, and the mismatch of trainer and engine.

docs/diagnostics.md explains each number, its healthy range and what to do.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from services.trainer.algorithms.log_ratio import beyond_limit, ratio_of
from services.trainer.algorithms.losses.cross_entropy import cross_entropy
from services.trainer.algorithms.losses.kl import KL_ESTIMATES, kl_from_sampled
from services.trainer.algorithms.losses.losses import PolicyLosses
from services.trainer.algorithms.losses.tokens import ScoredTokens
from services.trainer.batch.collate import MicroBatch

MEANS = (
    "entropy",
    "clip_fraction_low",
    "clip_fraction_high",
    "kl_behaviour",
    "kl_proximal",
    "kl_reference",
    "kl_penalty",
    "kl_teacher",
    "advantage_mean_abs",
    "truncated_fraction",
    "masked_fraction",
    "log_ratio_limited_fraction",
    "nonfinite_fraction",
)
"""Sums that become means over the trained tokens of the policy; given answers have none."""

_SUMS = (
    *(*MEANS, "loss", "tokens", "mismatch_tokens", "ratio", "ratio_squared"),
    *("given_tokens", "cross_entropy"),
)
_OPTIONAL = ("kl_proximal", "kl_reference", "kl_penalty", "kl_teacher")
_LAGS = 9
_BINS, _SMALLEST, _DECADES = 256, -7.0, 9.0
_PERCENTILES = (50, 90, 99)


class StepDiagnostics:
    """Sums over this rank's tokens, in float64 so that their order does not matter.

    A value that is not finite is left out of its sum and counted in `nonfinite_fraction`.
    Mismatches go into a histogram per version lag, whose bins are 8% wide, so that ranks
    need not send each other every token.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in _SUMS}
        self._bins = torch.zeros(_LAGS * _BINS, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)
        self._slopes, self._steepest = self._largest.clone(), self._largest.clone()
        self._seen: set[str] = set()

    def add(
        self,
        micro: MicroBatch,
        tokens: ScoredTokens,
        losses: PolicyLosses,
        shares: Tensor,
        kl_penalty: Tensor | None,
    ) -> None:
        """Count one micro-batch; `shares` are what each token's loss counts."""
        current, weight = tokens.current.detach(), micro.weight
        self._sums["loss"] += _finite(losses.tokens.loss * shares).sum(dtype=torch.float64)
        self._sums["tokens"] += weight.sum(dtype=torch.float64)
        self._sums["given_tokens"] += micro.given.sum(dtype=torch.float64)
        self._sums["cross_entropy"] += cross_entropy(current, micro.given).double()
        if tokens.entropy is not None:
            self._add(weight, "entropy", tokens.entropy)
        self._add(weight, "clip_fraction_low", losses.tokens.clipped_low)
        self._add(weight, "clip_fraction_high", losses.tokens.clipped_high)
        self._add(weight, "kl_behaviour", kl_from_sampled(tokens.behaviour, current))
        self._add(weight, "advantage_mean_abs", micro.advantage.abs())
        if tokens.proximal is not None:
            self._add(weight, "kl_proximal", kl_from_sampled(tokens.proximal, current))
        if tokens.reference is not None:
            self._add(weight, "kl_reference", KL_ESTIMATES["k3"](current, tokens.reference))
        if micro.teacher is not None:
            self._add(weight, "kl_teacher", KL_ESTIMATES["k3"](current, micro.teacher))
        if kl_penalty is not None:
            self._add(weight, "kl_penalty", kl_penalty)
        log_ratio = current - tokens.behaviour
        self._add(weight, "log_ratio_limited_fraction", beyond_limit(log_ratio))
        self._add(weight, "nonfinite_fraction", (~losses.tokens.loss.isfinite()).double())
        ratio = ratio_of(log_ratio.double())
        self._add(weight, "ratio", ratio)
        self._add(weight, "ratio_squared", ratio.square())
        if losses.corrected is not None:
            self._add(weight, "masked_fraction", losses.corrected.masked)
            self._add(weight, "truncated_fraction", losses.corrected.truncated)

    def note_slopes(self, slopes: Tensor) -> None:
        """Take the gradients of one micro-batch's loss by the logprob of each of its tokens.

        Each token's gradient by the weights is its slope times that of its logprob, so that the
        slopes tell whether a single one makes up the step.
        """
        sizes = _finite(slopes).abs().double()
        if sizes.numel():
            self._slopes += sizes.sum()
            self._steepest = torch.maximum(self._steepest, sizes.max())

    def note_mismatch(self, micro: MicroBatch, logprobs: Tensor) -> None:
        """Compare with the engine's logprobs those under the weights of the step's start.

        Tokens that were sampled under these very weights show what engine and trainer
        compute differently; older ones show staleness on top, so lags are kept apart.
        """
        gap = (logprobs.detach() - micro.behaviour).abs().double()
        known = (micro.lag >= 0) & gap.isfinite()
        gap, lag = gap[known], micro.lag[known].clamp(max=_LAGS - 1)
        fresh = gap[lag == 0]
        if fresh.numel():
            self._largest = torch.maximum(self._largest, fresh.max())
            self._sums["mismatch_tokens"] += fresh.numel()
        place = (gap.log10() - _SMALLEST) * (_BINS / _DECADES)
        index = lag * _BINS + place.clamp(0, _BINS - 1).long()
        self._bins.index_add_(0, index, torch.ones_like(gap))

    def reduce(self, loss_denominator: float, *, counts: bool) -> tuple[int, dict[str, float]]:
        """Trained tokens and metrics over all ranks, the same on each.

        Without a token of the policy, as in a step of given answers alone, there are no means.

        Args:
            loss_denominator: by which the sum of losses is divided.
            counts: whether this rank's tokens are not counted by another.
        """
        stacked = torch.cat([torch.stack([self._sums[name] for name in _SUMS]), self._bins])
        stacked *= counts
        dist.all_reduce(stacked)
        self._slopes *= counts  # ranks that share a row have the same slopes
        dist.all_reduce(self._slopes)
        largest = torch.stack([self._largest, self._steepest])
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        mismatch, steepest = largest.tolist()
        sums = dict(zip(_SUMS, stacked[: len(_SUMS)].tolist(), strict=True))
        tokens, given = int(sums["tokens"]), int(sums["given_tokens"])
        metrics = {
            name: sums[name] / tokens
            for name in MEANS
            if tokens and (name not in _OPTIONAL or name in self._seen)
        }
        metrics["loss"] = sums["loss"] / max(loss_denominator, 1)
        if squares := sums["ratio_squared"] * tokens:
            metrics["effective_sample_size"] = sums["ratio"] ** 2 / squares
        metrics["mismatch_max"] = mismatch
        slopes = self._slopes.item()
        metrics["token_share_max"] = steepest / slopes if slopes else 0.0
        metrics["mismatch_tokens"] = sums["mismatch_tokens"]
        if given:
            metrics["cross_entropy"] = sums["cross_entropy"] / given
        return tokens + given, metrics | _percentiles(stacked[len(_SUMS) :])

    def _add(self, weight: Tensor, name: str, value: Tensor) -> None:
        self._seen.add(name)
        self._sums[name] += _finite(value * weight).sum(dtype=torch.float64)


def _finite(values: Tensor) -> Tensor:
    values = values.detach()
    return torch.where(values.isfinite(), values, torch.zeros_like(values))


def _percentiles(bins: Tensor) -> dict[str, float]:
    """Percentiles in nats by version lag; the last lag stands for itself and all above."""
    metrics = {}
    for lag, counts in enumerate(bins.cpu().view(_LAGS, _BINS)):
        total = counts.sum()
        if not total:
            continue
        metrics[f"mismatch_tokens_lag{lag}"] = total.item()
        reached = counts.cumsum(0)
        for percent in _PERCENTILES:
            place = int(torch.searchsorted(reached, total * (percent / 100)))
            centre = _SMALLEST + (min(place, _BINS - 1) + 0.5) * (_DECADES / _BINS)
            metrics[f"mismatch_p{percent}_lag{lag}"] = 10.0**centre
    return metrics
