"""One train step: minibatches of micro-batches, and what they measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from services.protocol.trainer import AlgorithmConfig
from services.trainer.batching import Minibatch, Row
from services.trainer.collate import MicroBatch, collate
from services.trainer.losses import kl_behaviour, policy_losses
from services.trainer.model import Policy

_SUMS = (
    "loss",
    "entropy",
    "clip_fraction_low",
    "clip_fraction_high",
    "kl_behaviour",
    "advantage_mean_abs",
    "tokens",
    "mismatch_tokens",
)


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a train step did, the same on every rank.

    Attributes:
        tokens: response tokens that carried a gradient.
        optimizer_steps: updates made.
        metrics: see `TrainReport`; besides, `mismatch_tokens`, how many tokens
            `mismatch_max` was taken over, and `skipped_updates`, updates left out because
            their gradient was not finite.
        seconds: `forward_backward` and `optimizer`.
    """

    tokens: int
    optimizer_steps: int
    metrics: dict[str, float]
    seconds: dict[str, float]


@dataclass
class _Totals:
    """Sums over this rank's tokens, in float64 so that their order does not matter."""

    sums: dict[str, Tensor]
    mismatch: Tensor
    gradient_norms: list[float] = field(default_factory=list)
    skipped: int = 0


class TrainStep:
    """Runs train steps on one rank; all ranks must run the same ones together."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        algorithm: AlgorithmConfig,
        device: torch.device,
        *,
        temperature: float,
    ) -> None:
        self._policy, self._optimizer = policy, optimizer
        self._algorithm, self._device = algorithm, device
        self._temperature = temperature
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._clock = {"forward_backward": 0.0, "optimizer": 0.0}

    def run(
        self,
        rows: Sequence[Row],
        minibatches: Sequence[Minibatch],
        held_version: int,
        optimizer_steps: int,
    ) -> StepOutcome:
        """Train on the minibatches in order.

        Args:
            rows: what the minibatches index.
            minibatches: the plan of all ranks.
            held_version: policy version of the weights as they are now.
            optimizer_steps: updates made before, for the warm-up of the learning rate.
        """
        totals = self._fresh_totals()
        self._clock = dict.fromkeys(self._clock, 0.0)
        started = time.perf_counter()
        work = [
            [collate([rows[i] for i in micro], held_version).to(self._device) for micro in mine]
            for mine in (minibatch.ranks[self._rank] for minibatch in minibatches)
        ]
        proximal = self._proximal(work, totals)
        self._clock["forward_backward"] += time.perf_counter() - started
        for index, (minibatch, micros) in enumerate(zip(minibatches, work, strict=True)):
            self._accumulate(minibatch, micros, proximal[index], totals, first=index == 0)
            self._update(optimizer_steps + index, totals)
        return self._outcome(totals, updates=len(minibatches) - totals.skipped)

    def _proximal(self, work: list[list[MicroBatch]], totals: _Totals) -> list[list[Tensor | None]]:
        """Logprobs before the first update, where the algorithm wants them."""
        if self._algorithm.ratio_anchor != "proximal":
            return [[None] * len(micros) for micros in work]
        scored: list[list[Tensor | None]] = []
        with torch.no_grad():
            for micros in work:
                logprobs = [self._score(micro)[0] for micro in micros]
                for micro, values in zip(micros, logprobs, strict=True):
                    _note_mismatch(totals, micro, values)
                scored.append(list(logprobs))
        return scored

    def _score(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        return self._policy(
            micro.input_ids, micro.row, micro.column, micro.target, self._temperature
        )

    def _accumulate(
        self,
        minibatch: Minibatch,
        micros: list[MicroBatch],
        proximal: list[Tensor | None],
        totals: _Totals,
        *,
        first: bool,
    ) -> None:
        """Forward and backward over the micro-batches of one minibatch.

        FSDP averages gradients over ranks; with the loss divided by the minibatch's global
        token count and multiplied by the world size, that average is the exact token mean.
        """
        started = time.perf_counter()
        # With a proximal pass the mismatch was taken over all tokens before any update;
        # without one, only the first minibatch still sees the weights of the step's start.
        note = first and self._algorithm.ratio_anchor == "behaviour"
        for index, (micro, anchor) in enumerate(zip(micros, proximal, strict=True)):
            self._policy.reduce_gradients(index == len(micros) - 1)
            current, entropy = self._score(micro)
            losses = policy_losses(
                current, micro.behaviour, anchor, micro.advantage, self._algorithm
            )
            loss = (losses.loss * micro.weight).sum()
            (loss * (self._world_size / minibatch.tokens)).backward()  # type: ignore[no-untyped-call]
            if note:
                _note_mismatch(totals, micro, current)
            self._add(totals, micro, loss=losses.loss, entropy=entropy)
            self._add(totals, micro, clip_fraction_low=losses.clipped_low)
            self._add(totals, micro, clip_fraction_high=losses.clipped_high)
            self._add(totals, micro, kl_behaviour=kl_behaviour(current, micro.behaviour))
            self._add(totals, micro, advantage_mean_abs=micro.advantage.abs())
            self._add(totals, micro, tokens=torch.ones_like(micro.weight))
        self._clock["forward_backward"] += time.perf_counter() - started

    def _add(self, totals: _Totals, micro: MicroBatch, **values: Tensor) -> None:
        for name, value in values.items():
            totals.sums[name] += (value.detach() * micro.weight).sum(dtype=torch.float64)

    def _update(self, optimizer_steps: int, totals: _Totals) -> None:
        """Clip, then step; a gradient that is not finite is left out, on all ranks alike."""
        started = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self._algorithm.grad_clip)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if torch.isfinite(norm):
            warmup = self._algorithm.warmup_steps
            share = min(1.0, (optimizer_steps + 1) / warmup) if warmup else 1.0
            for group in self._optimizer.param_groups:
                group["lr"] = self._algorithm.learning_rate * share
            self._optimizer.step()
            totals.gradient_norms.append(norm.item())
        else:
            totals.skipped += 1
        self._optimizer.zero_grad()
        self._clock["optimizer"] += time.perf_counter() - started

    def _fresh_totals(self) -> _Totals:
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        return _Totals(sums={name: zero.clone() for name in _SUMS}, mismatch=zero.clone())

    def _outcome(self, totals: _Totals, updates: int) -> StepOutcome:
        stacked = torch.stack([totals.sums[name] for name in _SUMS])
        dist.all_reduce(stacked)
        dist.all_reduce(totals.mismatch, op=dist.ReduceOp.MAX)
        sums = dict(zip(_SUMS, stacked.tolist(), strict=True))
        tokens, compared = int(sums.pop("tokens")), sums.pop("mismatch_tokens")
        metrics = {name: value / max(tokens, 1) for name, value in sums.items()}
        norms = totals.gradient_norms
        metrics["grad_norm"] = sum(norms) / len(norms) if norms else 0.0
        metrics["mismatch_max"] = totals.mismatch.item()
        metrics["mismatch_tokens"] = compared
        metrics["skipped_updates"] = float(totals.skipped)
        return StepOutcome(
            tokens=tokens, optimizer_steps=updates, metrics=metrics, seconds=dict(self._clock)
        )


def _note_mismatch(totals: _Totals, micro: MicroBatch, logprobs: Tensor) -> None:
    """Compare with the engine where both held the same version."""
    difference = (logprobs.detach() - micro.behaviour).abs()[micro.fresh]
    if difference.numel():
        totals.mismatch = torch.maximum(totals.mismatch, difference.max().double())
        totals.sums["mismatch_tokens"] += difference.numel()
