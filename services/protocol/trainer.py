"""What the trainer receives and answers."""

from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from services.protocol.strict import StrictModel
from services.protocol.trajectory import Trajectory


class AlgorithmConfig(StrictModel):
    """How a batch becomes an update.

    Attributes:
        advantage: `grpo` divides by the group's standard deviation, `dr_grpo` does not.
        ratio_anchor: `behaviour` clips the ratio current/behaviour; `proximal` is decoupled
            PPO: clips current/proximal and weights by the mismatch ratio, truncated.
        clip_low: lower clip distance.
        clip_high: upper clip distance.
        mismatch_cap: upper bound of the mismatch ratio (truncated importance sampling),
            for `proximal` only.
        minibatches: optimizer steps per train step.
        learning_rate: AdamW's.
        warmup_steps: optimizer steps over which the rate rises linearly from 0.
        weight_decay: AdamW's.
        grad_clip: largest global gradient norm.
    """

    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    ratio_anchor: Literal["behaviour", "proximal"] = "behaviour"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    mismatch_cap: float = Field(default=2.0, ge=1)
    minibatches: int = Field(default=1, ge=1, le=64)
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)


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
            advantage_mean_abs.
        seconds: wall time by phase: `forward_backward`, `optimizer`, `snapshot`, `total`.
    """

    step: int
    policy_version: int
    tokens: int
    metrics: dict[str, float]
    seconds: dict[str, float]


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
