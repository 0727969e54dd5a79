"""What a rank answers to the trainer that leads it; no torch, so both sides can import it."""

from dataclasses import dataclass

from services.protocol.trainer import CheckpointReport, LedgerFrontier, TokenDetail
from services.protocol.weights.weights import Adapter, TensorSpec


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """A loaded model, as every rank describes it.

    Attributes:
        parameters: of the whole model.
        tensors: what a snapshot consists of.
        buckets: half-open ranges of indexes into `tensors`.
        canary: token sequences that are scored for every version.
        adapter: what the tensors are to be added to; None: they are the whole model.
    """

    parameters: int
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[tuple[int, int], ...]
    canary: tuple[tuple[int, ...], ...]
    adapter: Adapter | None = None


@dataclass(frozen=True, kw_only=True)
class RankSnapshot:
    """The weights of one version as one rank copied them.

    Attributes:
        digests: blake3 hex of the rank's buckets; none of a rank that does not send.
    """

    digests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """A run that a rank has loaded.

    Attributes:
        step: train steps done in it.
        snapshot: what was loaded.
        frontier: of the ledger, as the checkpoint that was loaded has it.
        refused: newer checkpoints that are not good, each with the reason.
    """

    step: int
    snapshot: RankSnapshot
    frontier: LedgerFrontier | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """A train step as one rank saw it; counts and metrics are the same on all.

    Attributes:
        tokens: response tokens that carried a gradient.
        metrics: see `TrainReport`.
        seconds: `forward_backward`, `optimizer` and `snapshot`.
        snapshot: the result.
        skipped_groups: see `TrainReport`.
        checkpoint: see `TrainReport`.
        advantages: see `TrainReport`.
        details: see `TrainReport`; only of this rank's rows.
    """

    tokens: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    snapshot: RankSnapshot
    skipped_groups: tuple[int, ...] = ()
    checkpoint: CheckpointReport
    advantages: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()
    details: tuple[TokenDetail, ...] = ()
