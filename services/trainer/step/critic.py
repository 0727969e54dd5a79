"""The critic: predicts the return of each token, the baseline of its advantage."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.losses.value_loss import value_loss
from services.trainer.batch.collate import MicroBatch
from services.trainer.config import TrainerConfig
from services.trainer.heartbeat import HEARTBEAT
from services.trainer.model.context_parallel import ContextGroup
from services.trainer.model.model import Policy, load_policy
from services.trainer.step.credit import Prepared, Work
from services.trainer.step.update import make_adamw, update


class ValueHead(nn.Linear):
    """One number for a hidden state, at first 0: the first advantages are the rewards."""

    own = ("weight", "bias")
    """Names of the parameters that no checkpoint of the model has."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, 1, device="meta")

    @torch.no_grad()
    def initialise(self) -> None:
        """Fill the parameters for a new run."""
        self.weight.zero_()
        self.bias.zero_()


class ValueModel(Policy):
    """A model of the policy's architecture and initial weights whose head gives one number."""

    def __init__(self, causal: Any, **settings: Any) -> None:
        super().__init__(causal, **settings)
        causal.set_output_embeddings(ValueHead(causal.config.get_text_config().hidden_size))

    def forward(self, micro: MicroBatch) -> Tensor:  # type: ignore[override]
        """Float32 values `[N]` of the states before the trained tokens."""
        own = self.own_tokens(micro)
        values: Tensor = self.causal.get_output_embeddings()(self.states(micro, own))
        return self.of_all(values.float().squeeze(-1), micro, own)


class Critic:
    """A value model and its optimizer. Every method is collective."""

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        config: TrainerConfig,
        mesh: DeviceMesh,
        context_group: ContextGroup,
    ) -> None:
        self._settings, self._device = algorithm.critic, torch.device(config.device)
        self.model = load_policy(config, mesh, ValueModel, context_group)
        self.optimizer = make_adamw(
            self.model.trained_parameters(),
            config,
            algorithm,
            learning_rate=self._settings.learning_rate,
            weight_decay=0.0,
        )

    @torch.no_grad()
    def values(self, micro: MicroBatch) -> Tensor:
        """Values `[N]` of the trained tokens, each of the state before it, without gradient."""
        values: Tensor = self.model(micro)
        return values

    def learn(
        self, work: Sequence[Prepared], tokens: int, diagnostics: "CriticDiagnostics"
    ) -> list[Tensor] | None:
        """One update on the micro-batches of a minibatch of `tokens` trained tokens.

        Returns:
            None if it was made, else the rows of each micro-batch with a loss not finite.
        """
        wrong = []
        for index, prepared in enumerate(work):
            HEARTBEAT.enter("critic", index + 1, len(work))
            one = prepared.to(self._device)
            held, returns = one.learned()
            self.model.reduce_gradients(index == len(work) - 1)
            losses = value_loss(self.model(one.micro), held, returns, self._settings.value_clip)
            total = (losses.loss * one.micro.weight).sum() * (dist.get_world_size() / tokens)
            total.backward()  # type: ignore[no-untyped-call]
            diagnostics.add(one.micro.weight, losses.loss, losses.clipped)
            wrong.append(one.micro.row[~losses.loss.detach().isfinite()])
        HEARTBEAT.enter("optimizer")
        parameters = self.model.trained_parameters()
        norm = update(self.optimizer, parameters, wrong, grad_clip=self._settings.grad_clip)
        diagnostics.add_update(norm)
        return wrong if norm is None else None


_SUMS = ("tokens", "value_loss", "value_clip_fraction", "value_mean", "return_mean")
_SQUARES = ("return_square", "error", "error_square")


class CriticDiagnostics:
    """Sums over this rank's tokens, in float64; values that are not finite are left out."""

    def __init__(self, device: torch.device) -> None:
        names = (*_SUMS, *_SQUARES)
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
        self._norms: list[float] = []
        self._skipped = 0

    def add(self, weight: Tensor, loss: Tensor, clipped: Tensor) -> None:
        """Count the losses of one micro-batch."""
        self._add(weight, "value_loss", loss.detach())
        self._add(weight, "value_clip_fraction", clipped)

    def add_start(self, work: Work) -> None:
        """Count values and returns as they are before the first update."""
        for one in (one for several in work for one in several):
            weight = one.micro.weight
            values, returns = (part.double() for part in one.learned())
            self._add(weight, "tokens", torch.ones_like(values))
            self._add(weight, "value_mean", values)
            self._add(weight, "return_mean", returns)
            self._add(weight, "return_square", returns.square())
            self._add(weight, "error", returns - values)
            self._add(weight, "error_square", (returns - values).square())

    def add_update(self, norm: float | None) -> None:
        """Count an update and its gradient norm, or one that was skipped."""
        if norm is None:
            self._skipped += 1
        else:
            self._norms.append(norm)

    def reduce(self, passes: int, *, counts: bool) -> dict[str, float]:
        """Metrics over all ranks that count and all `passes` over the batch, the same on each; see
        docs/diagnostics.md."""
        stacked = torch.stack(list(self._sums.values())) * counts
        dist.all_reduce(stacked)
        sums = dict(zip(self._sums, stacked.tolist(), strict=True))
        tokens = max(sums["tokens"], 1.0)
        means = {name: total / tokens for name, total in sums.items()}
        for name in ("value_loss", "value_clip_fraction"):
            means[name] /= passes
        spread = means["return_square"] - means["return_mean"] ** 2
        unexplained = means["error_square"] - means["error"] ** 2
        return {
            **{name: means[name] for name in _SUMS if name != "tokens"},
            # Returns that are all the same leave nothing to explain.
            "explained_variance": 1.0 - unexplained / spread if spread > 1e-12 else 0.0,
            "critic_grad_norm": sum(self._norms) / len(self._norms) if self._norms else 0.0,
            "skipped_critic_updates": float(self._skipped),
        }

    def _add(self, weight: Tensor, name: str, value: Tensor) -> None:
        kept = torch.where(value.isfinite(), value, 0.0) * weight
        self._sums[name] += kept.sum(dtype=torch.float64)
