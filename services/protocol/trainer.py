"""What the trainer receives and answers."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from services.protocol.strict import StrictModel
from services.protocol.trajectory import Trajectory

AdvantageKind = Literal[
    "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
]

ALGORITHM_PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence_mean"},
    "dr_grpo": {
        "advantage": "dr_grpo",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": "fixed_length",
    },
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"},
    "gspo": {
        "loss": "gspo",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "aggregation": "sequence_mean",
    },
    "cispo": {"loss": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token_mean"},
    "rloo": {
        "advantage": "rloo",
        "loss": "reinforce",
        "aggregation": "fixed_length",
        "fixed_length": 1,
    },
    "reinforce_plus_plus": {
        "advantage": "reinforce_plus_plus",
        "clip_low": 0.2,
        "clip_high": 0.2,
    },
    "reinforce_plus_plus_baseline": {
        "advantage": "reinforce_plus_plus_baseline",
        "clip_low": 0.2,
        "clip_high": 0.2,
    },
}
"""What `preset` stands for; a key that is given as well wins."""

LOSSES = ("clip", "gspo", "cispo", "reinforce")
"""Losses that are built in."""


class AlgorithmConfig(StrictModel):
    """How a batch becomes an update.

    Attributes:
        preset: fills in what a published algorithm chooses; keys that are given win. See
            `ALGORITHM_PRESETS`.
        advantage: `grpo` divides by the group's standard deviation, `dr_grpo` does not,
            `rloo` takes the mean of the others, `reinforce_plus_plus` normalises over the
            batch, its `_baseline` variant after subtracting the group's mean.
        loss: `clip` (PPO's surrogate), `gspo`, `cispo`, `reinforce`, or the user's own as
            `file.py:function` or `module:function`.
        aggregation: `token_mean` divides by all tokens, `sequence_mean` averages each
            answer first, `fixed_length` divides by answers times `fixed_length`.
        fixed_length: tokens, for `fixed_length` only.
        ratio_anchor: `behaviour` clips the ratio current/behaviour; `proximal` is decoupled
            PPO: clips current/proximal and weights by the mismatch ratio, corrected.
        clip_low: lower clip distance.
        clip_high: upper clip distance.
        mismatch_correction: for `proximal` only: `truncate` the mismatch ratio at the cap,
            `mask` what lies outside floor and cap, or `none` to leave the ratio out.
        mismatch_level: of the mismatch ratio: `token`, `sequence` (its product over the
            answer) or `geometric` (its geometric mean over the answer).
        mismatch_floor: lower bound of the mismatch ratio, for `mask` only.
        mismatch_cap: upper bound of the mismatch ratio, for `proximal` only.
        mask_truncated: leave answers that hit the length limit out of the loss (DAPO's
            overlong filtering); they still count for their group's statistics.
        overlong_limit: tokens at which an answer's reward is lowered by 1 (DAPO's soft
            punishment); None lowers none.
        overlong_buffer: tokens below `overlong_limit` over which that begins.
        minibatches: optimizer steps per train step.
        learning_rate: AdamW's.
        warmup_steps: optimizer steps over which the rate rises linearly from 0.
        weight_decay: AdamW's.
        grad_clip: largest global gradient norm.
    """

    preset: (
        Literal[
            "grpo",
            "dr_grpo",
            "dapo",
            "gspo",
            "cispo",
            "rloo",
            "reinforce_plus_plus",
            "reinforce_plus_plus_baseline",
        ]
        | None
    ) = None
    advantage: AdvantageKind = "grpo"
    loss: str = "clip"
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    fixed_length: int | None = Field(default=None, ge=1)
    ratio_anchor: Literal["behaviour", "proximal"] = "behaviour"
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.28, gt=0)
    mismatch_correction: Literal["truncate", "mask", "none"] = "truncate"
    mismatch_level: Literal["token", "sequence", "geometric"] = "token"
    mismatch_floor: float = Field(default=0.0, ge=0, le=1)
    mismatch_cap: float = Field(default=2.0, ge=1)
    mask_truncated: bool = False
    overlong_limit: int | None = Field(default=None, ge=1)
    overlong_buffer: int = Field(default=0, ge=0)
    minibatches: int = Field(default=1, ge=1, le=64)
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("preset"), str):
            return data
        preset = dict(ALGORITHM_PRESETS.get(data["preset"], {}))
        if "aggregation" in data:
            preset.pop("fixed_length", None)  # belongs to the aggregation that is replaced
        return preset | data

    @field_validator("loss")
    @classmethod
    def _known_or_a_function(cls, value: str) -> str:
        place, _, name = value.rpartition(":")
        if value not in LOSSES and not (place and name.isidentifier()):
            raise ValueError(
                f"Choose {', '.join(LOSSES)}, or your own as file.py:function or module:function"
            )
        return value

    @model_validator(mode="after")
    def _refuse_what_would_do_nothing(self) -> Self:
        if (self.aggregation == "fixed_length") != (self.fixed_length is not None):
            raise ValueError("fixed_length goes with aggregation: fixed_length, in tokens")
        if self.ratio_anchor != "proximal" and (
            self.mismatch_correction != "truncate"
            or self.mismatch_level != "token"
            or self.mismatch_floor
        ):
            raise ValueError(
                "mismatch_* need ratio_anchor: proximal; around the behaviour policy the ratio "
                "already holds the whole correction"
            )
        if self.mismatch_floor and self.mismatch_correction != "mask":
            raise ValueError("mismatch_floor needs mismatch_correction: mask")
        if self.overlong_buffer > (self.overlong_limit or 0):
            raise ValueError("overlong_buffer must be at most overlong_limit")
        return self


@dataclass(frozen=True, kw_only=True)
class ScoredTrajectory:
    """A trajectory and its reward. Infrastructure failures never get here."""

    trajectory: Trajectory
    reward: float


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """A sample group: the trajectories of one prompt.

    Attributes:
        group_id: the ledger's name for it.
        trajectories: at least two.
    """

    group_id: int
    trajectories: tuple[ScoredTrajectory, ...]


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """What one train step consumes.

    Attributes:
        run_id: the run it belongs to; any other than the started one is refused.
        step: 1-based number of this train step; must be the trainer's step plus one.
        groups: at least one.
    """

    run_id: str
    step: int
    groups: tuple[TrainGroup, ...]


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What one train step did.

    Attributes:
        step: train steps done.
        policy_version: version published with the new weights.
        tokens: response tokens that carried a gradient.
        metrics: scalars by name: loss, grad_norm, entropy, clip_fraction_low,
            clip_fraction_high, kl_behaviour, mismatch_max (largest |trainer - behaviour|
            logprob of tokens sampled under the version the trainer held, nats),
            advantage_mean_abs and the rest of docs/algorithms.md.
        seconds: wall time by phase: `forward_backward`, `optimizer`, `snapshot`, `total`.
        skipped_groups: sample groups whose update was left out because it was not finite.
    """

    step: int
    policy_version: int
    tokens: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    skipped_groups: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Prepare the trainer for a run.

    Attributes:
        run_id: the run.
        checkpoint_dir: where its checkpoints are; the newest one is loaded, else the
            model's initial weights.
        algorithm: how to update.
        temperature: that answers are sampled with; divides the trainer's logits, so that
            current logprobs are of the distribution that was sampled from.
        seed: of everything random in the trainer.
    """

    run_id: str
    checkpoint_dir: str
    algorithm: AlgorithmConfig
    temperature: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """Where the trainer is.

    Attributes:
        ready: all ranks are up.
        run_id: the run it was started for, None before the first.
        step: train steps done in that run.
        policy_version: version of the weights it holds, None before its first publish.
        world_size: number of FSDP2 ranks.
        parameters: parameters of the model.
    """

    ready: bool
    run_id: str | None
    step: int
    policy_version: int | None
    world_size: int
    parameters: int


class Trainer(Protocol):
    """The trainer's interface. Every call may raise `NotReady` while ranks restart."""

    async def start_run(self, start: RunStart) -> TrainerState:
        """Load the run's newest checkpoint or the initial weights, and publish them.

        Calling it again for the same run goes back to the newest checkpoint.
        """

    async def train(self, batch: TrainBatch) -> TrainReport:
        """Do one train step and publish the result as a new policy version."""

    async def save(self, run_id: str) -> int:
        """Write a checkpoint of the current step; returns the step."""

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """Current logprobs of tokens 1.. of each sequence, natural log, temperature 1."""

    async def state(self) -> TrainerState:
        """Where the trainer is; never raises."""
