"""Answers of a rank to the trainer that leads it; no torch, so both sides can import them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import LedgerFrontier, RunStart, TrainReport
from services.protocol.weights.weights import Adapter, TensorSpec, WeightManifest
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.step_plan import StepPlan, plan_step

Digests = tuple[str, ...]
"""blake3 hex of a rank's buckets of a version; empty for a rank that does not send."""


_NOT_LOADED = PassLimits(world_size=1, max_tokens=1)


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """A loaded model, as every rank describes it.

    Attributes:
        parameters: of the whole model.
        tensors: of a snapshot.
        buckets: half-open ranges of indexes into `tensors`.
        canary: token sequences that are scored for every version until a run starts.
        adapter: set if the tensors are an adapter's; None: they are the whole model.
        vocabulary: number of token ids.
        limits: what passes of the model are cut to.
        peak_flops: FLOP/s of a rank's device at most, None where that is not known.
    """

    parameters: int
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[tuple[int, int], ...]
    canary: tuple[tuple[int, ...], ...]
    adapter: Adapter | None = None
    vocabulary: int = 0
    limits: PassLimits = _NOT_LOADED
    peak_flops: float | None = None

    def manifest(
        self, version: int, step: int, digests: Sequence[Digests], model: str = ""
    ) -> WeightManifest:
        """The manifest of a version, from the digests of the ranks that send it."""
        return WeightManifest(
            version=version,
            train_step=step,
            tensors=self.tensors,
            buckets=self.buckets,
            digests=tuple(digests),
            canary=self.canary,
            adapter=self.adapter,
            model=model,
        )

    def plan(self, batch: TrainBatch, start: RunStart) -> StepPlan:
        """Plan a train step of this model in a run.

        Raises:
            InvalidInput: see `plan_step`.
        """
        return plan_step(
            batch,
            start.algorithm,
            seed=f"{start.seed}/{batch.step}",
            limits=self.limits,
            vocabulary=self.vocabulary,
        )


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """A run that a rank has loaded.

    Attributes:
        step: train steps done in it.
        digests: of the snapshot of the weights that were loaded.
        canary: token sequences that are scored for every version of the run.
        frontier: of the ledger, from the checkpoint that was loaded.
        refused: newer checkpoints that are not good, each with the reason.
    """

    step: int
    digests: Digests
    canary: tuple[tuple[int, ...], ...] = ()
    frontier: LedgerFrontier | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankStep(TrainReport):
    """A train step of one rank; counts and metrics are the same on all.

    `seconds` and `details` are of this rank; what the plan knows is left out.

    Attributes:
        digests: of the snapshot of the new weights.
        flops: this rank's share of the model FLOPs.
    """

    digests: Digests
    flops: float = 0.0


def report_of(
    steps: Sequence[RankStep],
    plan: StepPlan,
    *,
    total_s: float,
    peak_flops: float | None = None,
) -> TrainReport:
    """The report of a step from those of its ranks, each with `peak_flops` at most, and from its
    plan."""
    first = {one.name: getattr(steps[0], one.name) for one in fields(TrainReport)}
    return replace(
        TrainReport(**first),
        metrics=steps[0].metrics
        | plan.left_out()
        | {"shared_prefix_fraction": plan.shared_fraction()}
        | speed_of(steps, peak_flops),
        advantages=plan.reported_advantages(),
        seconds=steps[0].seconds | {"total": total_s},
        rank_seconds=tuple(one.seconds for one in steps),
        details=tuple(detail for one in steps for detail in one.details),
    )


def speed_of(steps: Sequence[RankStep], peak_flops: float | None) -> dict[str, float]:
    """`model_tflops`, TFLOP/s of a rank over the time of the slowest, and `mfu`."""
    slowest_s = max(sum(one.seconds.values()) for one in steps)
    if not slowest_s:
        return {}
    flops = sum(one.flops for one in steps) / len(steps) / slowest_s
    speed = {"model_tflops": flops / 1e12}
    return speed | ({"mfu": flops / peak_flops} if peak_flops else {})


def by_sequence(parts: Sequence[dict[int, list[float]]]) -> list[list[float]]:
    """The scores of all ranks, each of its own share, in the order of the sequences."""
    scored = {index: values for part in parts for index, values in part.items()}
    return [scored[index] for index in range(len(scored))]
