"""One train step: minibatches of micro-batches, and their diagnostics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.trainer import RunStart, TokenDetail
from services.trainer.algorithms.losses.aggregation import denominator, kl_weight, token_shares
from services.trainer.algorithms.losses.cross_entropy import cross_entropy
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.tokens import ScoredTokens
from services.trainer.algorithms.losses.user_loss import UserLoss
from services.trainer.batch.collate import collate
from services.trainer.batch.rank_batch import RankBatch, RankMinibatch, Rows
from services.trainer.collectives import all_gather
from services.trainer.heartbeat import HEARTBEAT
from services.trainer.model.model import Policy
from services.trainer.model.token_logprobs import Entropy
from services.trainer.step.auxiliary_models import AuxiliaryModels
from services.trainer.step.balance import ExpertBalance
from services.trainer.step.credit import Prepared, assign_credit
from services.trainer.step.critic import Critic, CriticDiagnostics
from services.trainer.step.diagnostics import StepDiagnostics
from services.trainer.step.learning_rate import learning_rate
from services.trainer.step.model_flops import ModelFlops
from services.trainer.step.noise_scale import gradient_noise_scale
from services.trainer.step.token_details import token_details
from services.trainer.step.update import update


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """The result of a train step, the same on every rank.

    Attributes:
        tokens: response tokens that carried a gradient.
        optimizer_steps: updates made.
        metrics: see `TrainReport`; besides, `mismatch_tokens`, how many tokens
            `mismatch_max` was taken over, and `skipped_updates`, updates left out because
            their gradient was not finite.
        seconds: `forward_backward`, `optimizer` and, with one, `critic`.
        skipped_groups: sample groups to blame for skipped updates: those with a loss that
            was not finite, else all of the minibatch.
        details: of the batch's detailed groups, as far as their rows are this rank's.
        flops: this rank's share of the model FLOPs.
    """

    tokens: int
    optimizer_steps: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    skipped_groups: tuple[int, ...] = ()
    details: tuple[TokenDetail, ...] = ()
    flops: float = 0.0


@dataclass
class _Updates:
    """The optimizer steps so far, made and skipped."""

    gradient_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    held_back: bool = False  # measured, but not made
    skipped_groups: set[int] = field(default_factory=set)

    @property
    def made(self) -> int:
        """Updates that changed the policy."""
        return 0 if self.held_back else len(self.gradient_norms)


class TrainStep:
    """One train step on one rank; all ranks must run it together."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        run: RunStart,
        device: torch.device,
        *,
        user_loss: UserLoss | None = None,
        auxiliary_models: AuxiliaryModels,
    ) -> None:
        self._policy, self._optimizer = policy, optimizer
        self._algorithm, self._device = run.algorithm, device
        self._temperature, self._user_loss = run.temperature, user_loss
        self._planned_updates = run.updates
        self._auxiliary_models = auxiliary_models
        self._context_group, self._world_size = policy.context_group, dist.get_world_size()
        self._clock = {"forward_backward": 0.0, "optimizer": 0.0}
        self._diagnostics, self._values = StepDiagnostics(device), CriticDiagnostics(device)
        self._balance = ExpertBalance(policy, run.algorithm.router_aux_loss_coef, device)
        self._updates, self._in_a_pass = _Updates(), 0
        self._model_flops, self._flops = ModelFlops.of(policy), 0.0
        self._detailed: frozenset[int] = frozenset()
        self._details: list[TokenDetail] = []

    def run(self, batch: RankBatch, held_version: int, optimizer_steps: int) -> StepOutcome:
        """Train on the minibatches in order, in each pass over the batch.

        Args:
            batch: this rank's part.
            held_version: policy version of the weights as they are now.
            optimizer_steps: updates made before, for the warm-up of the learning rate.
        """
        started = time.perf_counter()
        self._detailed = batch.detailed
        work = self._prepare(batch, held_version)
        work = assign_credit(work, batch.rewards, self._algorithm, self._context_group.leads)
        if self._auxiliary_models.critic is not None:
            self._values.add_start(work)
        self._clock["forward_backward"] += time.perf_counter() - started
        self._updates.held_back = batch.step <= self._algorithm.critic.warmup_steps
        self._in_a_pass = len(work)
        for number in range(self._algorithm.passes * len(work)):
            index = number % len(work)
            minibatch = batch.minibatches[index]
            bad = self._accumulate(minibatch, work[index], number)
            if not self._update(optimizer_steps + self._updates.made, bad):
                self._blame(work[index], bad)
            # Given answers have no return. All ranks have the same count, so they agree.
            if self._auxiliary_models.critic is not None and minibatch.tokens:
                self._update_critic(self._auxiliary_models.critic, minibatch, work[index])
        return self._outcome(batch.minibatches)

    def _prepare(self, batch: RankBatch, held_version: int) -> list[list[Prepared]]:
        """The micro-batches of each minibatch, prepared."""
        minibatches = batch.micro_batches()
        total = sum(map(len, minibatches))
        work: list[list[Prepared]] = [[] for _ in minibatches]
        each = ((index, rows) for index, several in enumerate(minibatches) for rows in several)
        for done, (index, rows) in enumerate(each, 1):
            HEARTBEAT.enter("scoring", done, total)
            work[index].append(self._prepared(rows, held_version, first=index == 0))
        return work

    def _prepared(self, rows: Rows, held_version: int, *, first: bool) -> Prepared:
        """Collate rows, and score them before the first update where the algorithm wants it."""
        held = collate(rows, held_version)
        micro = held.to(self._device)
        proximal = reference = entropy = None
        # The first minibatch's forward pass for the loss is its proximal pass as well: no
        # update comes before it. Credit by what the policy found likely is due before that.
        anchored = self._algorithm.ratio_anchor == "proximal"
        by_entropy = self._algorithm.top_entropy < 1
        acts = self._algorithm.kl.in_reward or self._algorithm.distillation is not None
        if by_entropy or (anchored and (not first or acts)):
            wanted: Entropy = "value" if by_entropy else "none"
            with torch.no_grad():
                scored, entropy = self._policy(micro, self._temperature, wanted)
            self._diagnostics.note_mismatch(micro, scored)
            proximal = scored if anchored else None
        if self._auxiliary_models.reference is not None:
            reference = self._auxiliary_models.reference.logprobs(
                micro, self._temperature, self._policy
            )
        critic = self._auxiliary_models.critic
        return Prepared(
            rows=rows,
            micro=held,
            proximal=proximal,
            entropy=entropy,
            reference=reference,
            values=critic.values(micro) if critic is not None else None,
        ).to(torch.device("cpu"))

    def _accumulate(
        self, minibatch: RankMinibatch, work: list[Prepared], number: int
    ) -> list[Tensor]:
        """Forward and backward over the micro-batches of one minibatch, for update `number`.

        FSDP averages gradients over ranks; with the loss divided by the minibatch's global
        denominator and multiplied by the world size, that average is the exact quotient. Ranks
        that share a micro-batch have the same loss, each with the gradient of its own tokens.

        Returns:
            For each micro-batch the rows of tokens whose loss was not finite.
        """
        started = time.perf_counter()
        # A pass before has taken the mismatch before any update; without one, only the
        # first minibatch still sees the weights of the step's start.
        before = any(one.proximal is not None or one.entropy is not None for one in work)
        note = number == 0 and not before
        counted = denominator(minibatch.tokens, minibatch.sequences, self._algorithm)
        scale = self._world_size / max(counted, 1)  # 0 where all answers are given
        of_given = self._world_size * self._algorithm.cross_entropy.coefficient
        of_given /= max(minibatch.given_tokens, 1)
        bad = []
        for index, held in enumerate(work):
            prepared = held.to(self._device)
            micro = prepared.micro
            HEARTBEAT.enter("micro-batch", index + 1, len(work))
            self._flops += self._model_flops.micro_batch(micro) / self._context_group.size
            self._policy.reduce_gradients(index == len(work) - 1)
            wanted: Entropy = "gradient" if self._algorithm.entropy_bonus else "value"
            current, entropy = self._balance.score(micro, self._temperature, wanted)
            current.retain_grad()
            tokens = _scored(prepared, current, entropy, self._algorithm)
            again = self._algorithm.passes > 1
            if again and tokens.proximal is not None and held.proximal is None:
                # A later pass over this minibatch has the same one.
                work[index] = replace(held, proximal=tokens.proximal.cpu())
            of_kl = kl_weight(
                *(micro.row, micro.sampled, minibatch.tokens, minibatch.sequences), self._algorithm
            )
            losses = policy_losses(tokens, self._algorithm, self._user_loss, of_kl)
            shares = token_shares(
                micro.weight, micro.row, micro.sampled, self._algorithm.aggregation
            )
            loss = (losses.tokens.loss * shares).sum()
            given = cross_entropy(current, micro.given) * of_given
            balance = self._balance.loss(micro, minibatch.trained)
            (loss * scale + given + balance).backward()
            if current.grad is not None:
                self._diagnostics.note_slopes(current.grad)
            if note:
                self._diagnostics.note_mismatch(micro, current)
            if number < self._in_a_pass:
                self._details += token_details(prepared, current, self._detailed)
            penalty = losses.kl_penalty if prepared.kl_penalty is None else prepared.kl_penalty
            self._diagnostics.add(micro, tokens, losses, shares, penalty)
            bad.append(micro.row[~losses.tokens.loss.detach().isfinite()])
        self._clock["forward_backward"] += time.perf_counter() - started
        return bad

    def _update(self, optimizer_steps: int, bad: list[Tensor]) -> bool:
        """One step of the policy's optimizer; returns False if it was left out."""
        started = time.perf_counter()
        HEARTBEAT.enter("optimizer")
        rate = learning_rate(self._algorithm, optimizer_steps, self._planned_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = update(
            self._optimizer,
            self._policy.trained_parameters(),
            bad,
            grad_clip=self._algorithm.grad_clip,
            held_back=self._updates.held_back,
        )
        if norm is None:
            self._updates.skipped += 1
        else:
            self._updates.gradient_norms.append(norm)
        self._clock["optimizer"] += time.perf_counter() - started
        return norm is not None

    def _update_critic(
        self, critic: Critic, minibatch: RankMinibatch, work: Sequence[Prepared]
    ) -> None:
        started = time.perf_counter()
        bad = critic.learn(work, minibatch.tokens, self._values)
        self._clock["critic"] = self._clock.get("critic", 0.0) + time.perf_counter() - started
        if bad is not None:
            self._blame(work, bad)

    def _blame(self, work: Sequence[Prepared], bad: list[Tensor]) -> None:
        """Find the sample groups of a skipped update; all ranks come here together."""
        ids = [one.rows.group_ids.tolist() for one in work]
        mine = zip(ids, bad, strict=True)
        wrong = {of[row] for of, rows in mine if of for row in rows.tolist()}
        parts = all_gather((wrong, {group for of in ids for group in of}))
        found, everything = (set[int]().union(*of) for of in zip(*parts, strict=True))
        self._updates.skipped_groups |= found or everything

    def _outcome(self, minibatches: Sequence[RankMinibatch]) -> StepOutcome:
        passes = self._algorithm.passes
        divisor = passes * denominator(
            sum(minibatch.tokens for minibatch in minibatches),
            sum(minibatch.sequences for minibatch in minibatches),
            self._algorithm,
        )
        counts = self._context_group.leads
        tokens, metrics = self._diagnostics.reduce(divisor, counts=counts)
        norms, skipped = self._updates.gradient_norms, self._updates.skipped
        metrics |= self._balance.reduce(passes * len(minibatches))
        metrics["grad_norm"] = sum(norms) / len(norms) if norms else 0.0
        metrics["learning_rate"] = self._optimizer.param_groups[0]["lr"]
        metrics["skipped_updates"] = float(skipped)
        answers = sum(minibatch.sequences for minibatch in minibatches) / max(1, len(minibatches))
        noise_scale = gradient_noise_scale(self._optimizer, answers)
        if noise_scale is not None:
            metrics["gradient_noise_scale"] = noise_scale
        if self._auxiliary_models.critic is not None:
            metrics |= self._values.reduce(passes, counts=counts)
        return StepOutcome(
            tokens=tokens // passes,
            optimizer_steps=self._updates.made,
            metrics=metrics,
            seconds=dict(self._clock),
            skipped_groups=tuple(sorted(self._updates.skipped_groups)),
            details=tuple(self._details) if counts else (),
            flops=self._flops,
        )


def _scored(
    prepared: Prepared, current: Tensor, entropy: Tensor, algorithm: AlgorithmConfig
) -> ScoredTokens:
    micro, proximal = prepared.micro, prepared.proximal
    if algorithm.ratio_anchor == "proximal" and proximal is None:
        proximal = current.detach()
    return ScoredTokens(
        current=current,
        behaviour=micro.behaviour,
        advantage=micro.advantage,
        sequence=micro.row,
        sequences=micro.sequences,
        proximal=proximal,
        reference=prepared.reference,
        entropy=entropy,
    )
