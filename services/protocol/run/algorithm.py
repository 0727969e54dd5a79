"""The `algorithm` of a run file: from a train batch to an update."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from services.protocol.reward.named_rewards import MAX_NAMES, RewardName
from services.protocol.run.algorithm_preset import PresetName, fill_in_algorithm
from services.protocol.run.distillation import DistillationConfig
from services.protocol.run.kl import KlConfig
from services.protocol.run.sequence_mask import SequenceMaskConfig
from services.protocol.strict import StrictModel, nearest

AdvantageKind = Literal[
    "grpo", "dr_grpo", "rloo", "maxrl", "lite_ppo", "best", "gdpo",
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae",
]  # fmt: skip

Weight = Annotated[float, Field(allow_inf_nan=False)]

LOSSES = ("clip", "dppo", "gspo", "cispo", "sapo", "reinforce")
"""Losses that are built in."""
_WITHOUT_DUAL_CLIP = tuple(name for name in LOSSES if name not in ("clip", "dppo"))


class CrossEntropyConfig(StrictModel):
    """Learning from given answers (`tasks` with `given: true`), before or beside the policy's own.

    Attributes:
        coefficient: weight of their mean cross-entropy beside the policy's loss.
        warmup_steps: first train steps of a run, which learn from given answers alone.
    """

    coefficient: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)


class CriticConfig(StrictModel):
    """Settings of the critic, which starts as `trainer.model` with a value head of zeros.

    Attributes:
        learning_rate: AdamW's.
        value_clip: how far a value may move in one train step before its loss stops
            falling; None for no such bound.
        grad_clip: largest global gradient norm.
        warmup_steps: first train steps of a run, in which only the critic learns; not with
            `cross_entropy.warmup_steps`.
    """

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    value_clip: float | None = Field(default=0.2, gt=0)
    grad_clip: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)


class AlgorithmConfig(StrictModel):
    """Settings of the update that a batch becomes.

    Attributes:
        preset: fills in what a published algorithm chooses, in a run file also what it
            chooses of the schedule and by the longest answer; keys that are given win. See
            `docs/algorithms.md`.
        rewards: weight of each named reward of the graders, at most 8; an answer's reward is the
            weighted sum. Weight 0 only measures it. An answer whose grader does not name just
            these has no reward. Empty: the grader's own sum counts.
        credit: `episode` gives all tokens of an answer its reward, `turn` those of each turn the
            sum of the rewards from that turn on, `token` each the sum of those from it on, both
            normalised in the group; for `grpo` only.
        advantage: `grpo` divides by the group's standard deviation, `dr_grpo` does not,
            `rloo` takes the mean of the others, `maxrl` divides by the mean, `lite_ppo` by the
            deviation of the whole batch, `best` is 1 for the best answers of a group and 0 for the
            others, `gdpo` does what `grpo` does for each of the named `rewards`, and then divides
            over the batch; `reinforce_plus_plus` normalises over the batch, its `_baseline` variant
            after subtracting the group's mean; `gae` asks a critic for each token.
        loss: `clip` (PPO's surrogate), `dppo`, `gspo`, `cispo`, `sapo`, `reinforce`, or the
            user's own as `file.py:function` or `module:function`.
        aggregation: `token_mean` divides by all tokens, `sequence_mean` averages each
            answer first, `fixed_length` divides by answers times `fixed_length`.
        fixed_length: tokens, for `fixed_length` only.
        loss_coefficient: weight of the `loss`, beside a KL penalty, an entropy bonus and what is
            learned from given answers.
        ratio_anchor: `behaviour` clips the ratio current/behaviour; `proximal` is decoupled
            PPO: clips current/proximal and weights by the mismatch ratio, corrected.
        clip_low: lower clip distance; for `dppo` of the token's probability, else of the ratio.
        clip_high: upper clip distance.
        dual_clip: for `clip` and `dppo` only: ratio above which a token with a negative advantage
            has no gradient, which both leave unbounded there; None for no such bound.
        gate_positive: for `sapo` only: how steeply its gate closes where the advantage is
            positive.
        gate_negative: the same where it is not.
        top_entropy: share of the batch's trained tokens that learn from their advantage: those
            with the highest entropy before the step (arXiv 2506.01939, section 5); 1 for all.
        mismatch_correction: for `proximal` only: `truncate` the mismatch ratio at the cap,
            `mask` what lies outside floor and cap, or `none` to leave the ratio out.
        mismatch_level: of the mismatch ratio: `token`, `sequence` (its product over the
            answer) or `geometric` (its geometric mean over the answer).
        mismatch_floor: lower bound of the mismatch ratio, for `truncate` and `mask`.
        mismatch_cap: upper bound of the mismatch ratio, for `proximal` only.
        sequence_mask: answers that are left out of the loss as too far from the policy.
        mask_truncated: leave answers that hit the length limit out of the loss (DAPO's
            overlong filtering); they still count for their group's statistics.
        least_graded: share of a group's trajectories that must have a reward; a group with fewer
            fails, since the baseline of a few is not that of the group.
        overlong_limit: tokens at which an answer's reward is lowered by 1 (DAPO's soft
            punishment): of an episode those that the policy sampled, in all calls together;
            None lowers none.
        overlong_buffer: tokens before `overlong_limit` over which the penalty grows from 0 to 1.
        entropy_bonus: how much a nat of a token's entropy lowers its loss.
        router_aux_loss_coef: how much uneven use of a mixture's experts costs (Switch
            Transformers, arXiv 2101.03961, section 2.2); 0 for nothing.
        kl: a penalty for leaving a reference model.
        cross_entropy: how given answers are learned from.
        distillation: a teacher whose logprobs of each token are learned from; None for none.
        gamma: discount per token, for `gae` and the `reinforce_plus_plus` kinds.
        gae_lambda: for `gae`: 0 trusts the critic, 1 the rewards.
        critic: how it learns, for `gae`.
        minibatches: optimizer steps per pass over a train batch.
        passes: how often a train step goes over its batch, in the same minibatches; advantages,
            proximal logprobs and values are those of before the first.
        optimizer: `adamw`, or `muon` for the matrices of the policy's decoder layers, and AdamW for
            the rest of it and for a critic; not with an adapter, 8-bit moments or an offload.
        momentum: Muon's, for `muon` only.
        learning_rate: AdamW's, and Muon's, whose step is scaled to suit it.
        warmup_steps: optimizer steps over which the rate rises linearly from 0.
        decay: how the rate falls until the run's last update; `none` keeps it.
        decay_steps: the rate falls over the last so many optimizer steps of the run (warm-up,
            stable, decay); None: from the end of the warm-up on.
        decay_to: share of `learning_rate` that would be left after the last update.
        weight_decay: AdamW's and Muon's, for the policy; a critic has none.
        weight_decay_on: `all` parameters, or `matrices` alone: not norms, biases and other vectors,
            nor embeddings and an output layer that is tied to them.
        beta1: AdamW's decay of the mean of gradients, of policy and critic.
        beta2: AdamW's decay of the mean of their squares.
        epsilon: what AdamW adds to the root of the latter.
        grad_clip: largest global gradient norm.
    """

    preset: PresetName | None = None
    rewards: dict[RewardName, Weight] = Field(default={}, max_length=MAX_NAMES)
    credit: Literal["episode", "turn", "token"] = "episode"
    advantage: AdvantageKind = "grpo"
    loss: str = "clip"
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    fixed_length: int | None = Field(default=None, ge=1)
    loss_coefficient: float = Field(default=1.0, gt=0)
    ratio_anchor: Literal["behaviour", "proximal"] = "behaviour"
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    gate_positive: float = Field(default=1.0, gt=0)
    gate_negative: float = Field(default=1.05, gt=0)
    top_entropy: float = Field(default=1.0, gt=0, le=1)
    mismatch_correction: Literal["truncate", "mask", "none"] = "truncate"
    mismatch_level: Literal["token", "sequence", "geometric"] = "token"
    mismatch_floor: float = Field(default=0.0, ge=0, le=1)
    mismatch_cap: float = Field(default=2.0, ge=1)
    sequence_mask: SequenceMaskConfig = SequenceMaskConfig()
    mask_truncated: bool = False
    least_graded: float = Field(default=0.5, ge=0, le=1)
    overlong_limit: int | None = Field(default=None, ge=1)
    overlong_buffer: int = Field(default=0, ge=0)
    entropy_bonus: float = Field(default=0.0, ge=0)
    router_aux_loss_coef: float = Field(default=0.0, ge=0)
    kl: KlConfig = KlConfig()
    cross_entropy: CrossEntropyConfig = CrossEntropyConfig()
    distillation: DistillationConfig | None = None
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    critic: CriticConfig = CriticConfig()
    minibatches: int = Field(default=1, ge=1, le=64)
    passes: int = Field(default=1, ge=1, le=64)
    optimizer: Literal["adamw", "muon"] = "adamw"
    momentum: float = Field(default=0.95, ge=0, lt=1)
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Literal["none", "linear", "cosine"] = "none"
    decay_steps: int | None = Field(default=None, ge=1)
    decay_to: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    weight_decay_on: Literal["all", "matrices"] = "all"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    grad_clip: float = Field(default=1.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        return fill_in_algorithm(data)

    @field_validator("loss")
    @classmethod
    def _known_or_a_function(cls, value: str) -> str:
        place, _, name = value.rpartition(":")
        if value not in LOSSES and not (place and name.isidentifier()):
            raise ValueError(
                f"Choose {', '.join(LOSSES)}, or your own as file.py:function or module:function"
                f"{nearest(value, LOSSES)}"
            )
        return value

    @model_validator(mode="after")
    def _refuse_what_would_do_nothing(self) -> Self:
        if (self.aggregation == "fixed_length") != (self.fixed_length is not None):
            raise ValueError("fixed_length goes with aggregation: fixed_length, in tokens")
        bounds = self.mismatch_level, self.mismatch_floor, self.mismatch_cap
        bounded, kind = bounds != ("token", 0.0, 2.0), self.mismatch_correction
        if self.ratio_anchor != "proximal" and (bounded or kind != "truncate"):
            raise ValueError(
                "mismatch_* need ratio_anchor: proximal; around the behaviour policy the ratio "
                "already holds the whole correction"
            )
        if kind == "none" and bounded:
            raise ValueError(
                "mismatch_level, mismatch_floor and mismatch_cap need mismatch_correction: "
                "truncate or mask"
            )
        if self.loss in _WITHOUT_DUAL_CLIP and self.dual_clip not in (3.0, None):
            raise ValueError("dual_clip needs loss: clip or dppo")
        if self.sequence_mask.geometric and self.ratio_anchor != "proximal":
            raise ValueError("sequence_mask.geometric_* need ratio_anchor: proximal")
        if self.loss == "reinforce" and self.updates > 1:
            raise ValueError(
                "reinforce has no ratio: updates after the first would train on answers of other "
                "weights as if they were their own; use minibatches: 1 and passes: 1, or loss: clip"
            )
        if self.momentum != 0.95 and self.optimizer != "muon":
            raise ValueError("momentum needs optimizer: muon")
        if self.loss != "sapo" and (self.gate_positive, self.gate_negative) != (1.0, 1.05):
            raise ValueError("gate_positive and gate_negative need loss: sapo")
        if self.advantage == "maxrl" and (self.overlong_limit is not None or self.kl.in_reward):
            raise ValueError(
                "maxrl divides by the mean reward, which a penalty could make negative; leave "
                "overlong_limit out, and use kl.where: loss"
            )
        if self.advantage == "maxrl" and min(self.rewards.values(), default=0.0) < 0:
            raise ValueError(
                "maxrl divides by the mean reward: give no weight of rewards below 0, or choose "
                "another advantage"
            )
        if self.decay == "none" and (self.decay_steps is not None or self.decay_to):
            raise ValueError("decay_steps and decay_to need a decay: linear or cosine")
        if self.weight_decay_on != "all" and not self.weight_decay:
            raise ValueError("weight_decay_on needs a weight_decay above 0: else nothing decays")
        if self.overlong_buffer > (self.overlong_limit or 0):
            raise ValueError("overlong_buffer must be at most overlong_limit")
        if self.gamma != 1 and not self.by_token:
            raise ValueError("gamma needs an advantage by token: gae or reinforce_plus_plus")
        if not self.has_critic and (self.gae_lambda != 0.95 or self.critic != CriticConfig()):
            raise ValueError("gae_lambda and critic need advantage: gae")
        if self.mask_truncated and self.kl.in_reward and not self.by_token:
            raise ValueError(
                "mask_truncated leaves out answers whose KL their group's mean would need; "
                "use kl.where: loss, or advantage: gae or reinforce_plus_plus"
            )
        return self

    @model_validator(mode="after")
    def _fits_named_rewards(self) -> Self:
        if self.rewards and not any(self.rewards.values()):
            raise ValueError("rewards: all weights are 0: give the rewards to learn from another")
        penalised = self.kl.in_reward or self.overlong_limit is not None
        in_parts = self.credit != "episode"
        if in_parts and (self.advantage != "grpo" or self.rewards or penalised):
            raise ValueError(
                f"credit: {self.credit} needs advantage: grpo, and goes neither with named rewards "
                "nor with a penalty for length or in the reward (overlong_limit, kl.where: reward)"
            )
        if self.advantage != "gdpo":
            return self
        if not self.rewards:
            raise ValueError(
                "advantage: gdpo normalises each named reward: give rewards, their weights by name"
            )
        if penalised:
            raise ValueError(
                "advantage: gdpo normalises each reward by itself, and a penalty is none of them: "
                "use kl.where: loss, leave overlong_limit out, or choose another advantage"
            )
        return self

    @model_validator(mode="after")
    def _refuse_what_shapes_rewards_of_no_weight(self) -> Self:
        if self.has_rewards:
            return self
        shapes = {
            "kl.where: reward": self.kl.in_reward,
            "overlong_limit": self.overlong_limit is not None,
            "advantage: gae": self.has_critic,
            f"credit: {self.credit}": self.credit != "episode",
            "gamma": self.gamma != 1,
        }
        for idle in (name for name, is_set in shapes.items() if is_set):
            instead = "use kl.where: loss" if self.kl.in_reward else f"leave {idle} out"
            raise ValueError(
                f"distillation.rewards: 0 learns from no reward, so {idle} would do nothing: "
                f"give distillation.rewards above 0, or {instead}"
            )
        return self

    @property
    def decoupled(self) -> dict[str, float]:
        """Weights of the rewards that are normalised each by itself; empty for a single reward."""
        gdpo = self.advantage == "gdpo"
        return {name: weight for name, weight in self.rewards.items() if weight and gdpo}

    @property
    def updates(self) -> int:
        """Optimizer steps per train step."""
        return self.minibatches * self.passes

    @property
    def by_token(self) -> bool:
        """Whether tokens of one answer can have different advantages."""
        discounted = self.gamma != 1 or self.kl.in_reward
        return self.has_critic or (discounted and self._over_the_batch)

    @property
    def has_rewards(self) -> bool:
        """Whether rewards are learned from, and not only a teacher."""
        return self.distillation is None or self.distillation.rewards > 0

    @property
    def has_critic(self) -> bool:
        """Whether there is a second model that predicts rewards."""
        return self.advantage == "gae"

    @property
    def smallest_group(self) -> int:
        """Trajectories that a sample group needs: two where their mean is the baseline."""
        return 1 if self.compares_groups or not self.has_rewards else 2

    @property
    def compares_groups(self) -> bool:
        """Whether a reward is compared with those of other sample groups."""
        return self.advantage in ("reinforce_plus_plus", "gae")

    @property
    def learns_from_equal_rewards(self) -> bool:
        """Whether a sample group whose rewards are all equal can have a gradient."""
        pulled = self.kl.coefficient > 0 or self.entropy_bonus > 0
        return pulled or self.distillation is not None or self.has_critic or self._over_the_batch

    @property
    def _over_the_batch(self) -> bool:
        return self.advantage.startswith("reinforce_plus_plus")
