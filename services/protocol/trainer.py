"""Requests and answers of the trainer."""

from dataclasses import dataclass
from typing import Protocol

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.profile import ProfileRequest
from services.protocol.train_batch import TrainBatch

RANK_PREFIX = "trainer_rank/"
"""Begins the actor names of ranks into whose sends `millrace chaos` may inject faults."""


@dataclass(frozen=True, kw_only=True)
class LedgerFrontier:
    """The position of a run's ledger at a checkpoint.

    Attributes:
        next_position: first position of the prompt order that was not admitted yet.
        trained: sample groups trained.
    """

    next_position: int
    trained: int


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """The state of a run's checkpoints.

    Attributes:
        saved_step: train step of the newest one that is complete on disk, 0 for none.
        problem: why one that was begun is not there, reported once; empty when all are.
        disk_full: that is because its disk is full; one may be written when there is space.
    """

    saved_step: int = 0
    problem: str = ""
    disk_full: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenDetail:
    """Results of a train step for the tokens of one trajectory.

    Attributes:
        group_id: of its sample group.
        index: of the trajectory in the group.
        places: indexes of the response tokens that carried a gradient, length N.
        logprobs: the trainer's, natural log, length N: proximal ones where the algorithm takes
            them, else those of the forward pass that the loss was of.
        advantages: length N.
    """

    group_id: int
    index: int
    places: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Results of one train step.

    Attributes:
        step: train steps done.
        policy_version: version published with the new weights.
        tokens: response tokens that carried a gradient.
        metrics: scalars by name: loss, grad_norm, entropy, clip_fraction_low,
            clip_fraction_high, kl_behaviour, mismatch_max (largest |trainer - behaviour|
            logprob of tokens sampled under the version the trainer held, nats),
            advantage_mean_abs and the rest of docs/diagnostics.md.
        seconds: wall time by phase: `forward_backward`, `optimizer`, `snapshot`, `total`.
        skipped_groups: sample groups whose update was left out because it was not finite.
        checkpoint: what became of checkpoints begun before.
        rank_seconds: phases of `seconds` as each rank took them, without `total`.
        advantages: by sample group, index of a trajectory and what each of its tokens got;
            where the algorithm goes by token, what the whole answer earned.
        details: of the groups in `TrainBatch.detailed`.
    """

    step: int
    policy_version: int
    tokens: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    skipped_groups: tuple[int, ...] = ()
    checkpoint: CheckpointReport
    rank_seconds: tuple[dict[str, float], ...] = ()
    advantages: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()
    details: tuple[TokenDetail, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Prepare the trainer for a run.

    Attributes:
        run_id: the run.
        checkpoint_dir: where its checkpoints are; the newest one is loaded, else `origin`, else
            the model's initial weights.
        algorithm: how to update.
        temperature: that answers are sampled with; divides the trainer's logits, so that
            current logprobs are of the distribution that was sampled from.
        seed: of everything random in the trainer.
        updates: optimizer steps that the run is to make, over which the learning rate decays.
        origin: folder with checkpoints of another run, from which this one branches off: the
            policy of the newest good one is loaded, and nothing else of it. Empty: no branch.
        determinism: compute with kernels that repeat their bytes, or fail.
    """

    run_id: str
    checkpoint_dir: str
    algorithm: AlgorithmConfig
    temperature: float
    seed: int
    updates: int = 0
    origin: str = ""
    determinism: bool = False


def checkpoint_bytes(parameters: int) -> int:
    """Of one checkpoint of a whole model: each weight and its two moments, in float32."""
    return 12 * parameters


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """What a rank does now.

    Attributes:
        phase: `starting`, `loading`, `scoring`, `micro-batch`, `critic`, `optimizer`, `snapshot`,
            `saving` or `idle`.
        done: of `total`: bytes where it is loading, else micro-batches begun.
        total: 0 where the phase has no parts.
        marks: signs of progress since the process started; grows alike on ranks in lock-step.
        quiet_s: seconds without a sign of life, by the rule of docs/training.md.
        rank: whose progress it is.
    """

    phase: str
    done: int = 0
    total: int = 0
    marks: int = 0
    quiet_s: float = 0.0
    rank: int = 0

    def __str__(self) -> str:
        """For people, such as `loading 3.1 of 14.0 GiB`."""
        if not self.total:
            return self.phase
        if self.phase == "loading":
            return f"loading {self.done / (1 << 30):.1f} of {self.total / (1 << 30):.1f} GiB"
        return f"{self.phase} {self.done} of {self.total}"


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """The state of the trainer.

    Attributes:
        ready: all ranks are up.
        run_id: the run it was started for, None before the first.
        step: train steps done in that run.
        policy_version: version of the weights it holds, None before its first publish.
        world_size: number of FSDP2 ranks.
        row_groups: number of groups of ranks, among which the rows of a batch are divided.
        parameters: parameters of the model.
        checkpoint_bytes: of one checkpoint, None where that is not known.
        checkpoints_kept: at a time, besides the one that is being written.
        longest_row: tokens of the longest prompt and answer together that the model can be trained
            with, None without a limit.
        frontier: where the ledger was at the checkpoint that was loaded, None without one.
        refused_checkpoints: newer ones that could not be loaded, each with the reason.
        progress: of the slowest rank at work, None while the trainer has nothing to do.
        failed_starts: how often in a row new ranks did not come up.
        shares_devices: with engines, which work while it does not.
    """

    ready: bool
    run_id: str | None
    step: int
    policy_version: int | None
    world_size: int
    row_groups: int
    parameters: int
    checkpoint_bytes: int | None = None
    checkpoints_kept: int | None = None
    longest_row: int | None = None
    frontier: LedgerFrontier | None = None
    refused_checkpoints: tuple[str, ...] = ()
    progress: RankProgress | None = None
    failed_starts: int = 0
    shares_devices: bool = False


class Trainer(Protocol):
    """The trainer's interface. Every call may raise `NotReady` while ranks restart."""

    async def start_run(self, start: RunStart) -> TrainerState:
        """Load the run's newest good checkpoint or the initial weights, and publish them.

        Calling it again for the same run goes back to the newest checkpoint.

        Raises:
            InvalidInput: there are checkpoints and none of them is good.
        """

    async def train(self, batch: TrainBatch) -> TrainReport:
        """Do one train step and publish the result as a new policy version."""

    async def save(
        self, run_id: str, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        """Write a checkpoint of the current step, with where the ledger is.

        Without `wait` it returns when the state is copied; what became of the checkpoint is
        in the reports that follow.
        """

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """Current logprobs of tokens 1.. of each sequence, natural log, temperature 1."""

    async def begin_turn(self) -> None:
        """Take the devices that ranks share with engines, for several calls.

        Each call takes them by itself else. The turn ends with `end_turn`, with a call that fails,
        and when no call has come for a minute.
        """

    async def end_turn(self) -> None:
        """Return the devices to the engines; nothing is done between turns."""

    async def profile(self, request: ProfileRequest) -> None:
        """Have ranks profile the next train steps; returns at once.

        Raises:
            InvalidInput: another run, or a rank that there is not.
        """

    async def state(self) -> TrainerState:
        """The state of the trainer; never raises."""
