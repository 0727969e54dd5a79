"""How far a replica's logprobs of the canary lie from the trainer's, and how far good ones do."""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.weights.weights import CanaryLogprobs, Dtype, WeightManifest

LARGEST: Mapping[Dtype, float] = {
    Dtype.FLOAT32: 0.01,
    Dtype.FLOAT16: 2.0,
    Dtype.BFLOAT16: 10.0,
}
"""Largest gap of one token, nats. In small models rounding reaches 1e-5 in float32 and 0.24 in
bfloat16; where it sends a token of a mixture to another expert, 3 nats."""
MEAN_SHARE = 1 / 64
"""Largest mean gap, as a share of the largest gap of one token."""
OUTLIERS = 1 / 20
"""Share of the tokens, those with the largest gaps, that the mean leaves out."""
ROUNDING: Mapping[Dtype, float] = {
    Dtype.FLOAT32: 1e-5,
    Dtype.FLOAT16: 2**-14,
    Dtype.BFLOAT16: 2**-11,
}
"""Mean gaps up to this are rounding, whatever they were before."""
KEPT, ENOUGH = 64, 8
"""Good answers that are remembered, and from how many on they are a measure for others."""
SPREADS = 10.0
"""In 700 good pushes the mean gap of N tokens exceeded its median by at most `4 / sqrt(N)` of it
(`benchmarks/canary.py`). Two and a half times that is no accident."""

log = Log("weight_bus")


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Statistics of `|replica - trainer|` over all tokens of the canary, nats.

    Attributes:
        tokens: how many were compared.
        mean: without `OUTLIERS`; infinite where they cannot be compared.
        high: the ninth decile.
        largest: of one token.
    """

    tokens: int
    mean: float
    high: float
    largest: float

    @classmethod
    def between(cls, answered: CanaryLogprobs, expected: CanaryLogprobs) -> "Gaps":
        """Of a replica's answer and the trainer's."""
        alike = [len(one) for one in answered] == [len(one) for one in expected]
        gaps = sorted(
            abs(mine - trainers)
            for one, other in zip(answered, expected, strict=False)
            for mine, trainers in zip(one, other, strict=False)
        )
        if not alike or not gaps or any(map(math.isnan, gaps)):
            return cls(tokens=len(gaps), mean=math.inf, high=math.inf, largest=math.inf)
        high = gaps[min(len(gaps) - 1, len(gaps) * 9 // 10)]
        usual = gaps[: len(gaps) - int(len(gaps) * OUTLIERS)]
        return cls(tokens=len(gaps), mean=statistics.fmean(usual), high=high, largest=gaps[-1])


class GoodGaps:
    """Gaps of the latest good answers of all replicas to one canary."""

    def __init__(self, max_gap: float | None) -> None:
        """`max_gap`: largest gap of one token; None: by the element type of the weights."""
        self._max_gap = max_gap
        self._sequences: tuple[tuple[int, ...], ...] = ()
        self._good: deque[Gaps] = deque(maxlen=KEPT)
        self._proved = -1  # the highest version with a good answer
        self._doubted: dict[str, int] = {}  # replicas, and the version since which they are

    def judge(
        self, replica_id: str, gaps: Gaps, manifest: WeightManifest, *, quantised: bool = False
    ) -> str | None:
        """Why an answer is wrong; None: it is good, and is remembered.

        A `quantised` engine is bound as if bfloat16 weights had been sent, whatever came.

        Gaps may grow at once where the policy changes fast. They are a new measure if they stay
        so after everything was sent again, and no other replica has given a better answer since.
        """
        if manifest.canary != self._sequences:
            self._sequences = manifest.canary
            self._good.clear()
            self._doubted.clear()
        dtype = Dtype.BFLOAT16 if quantised else _coarsest(manifest)
        problem = self._beyond_bounds(gaps, dtype)
        if problem is not None:
            return problem
        problem = self._unlike_others(gaps, dtype)
        if problem is not None:
            is_again = replica_id in self._doubted
            if not is_again or self._proved >= self._doubted[replica_id]:
                self._doubted.setdefault(replica_id, manifest.version)
                return problem
            log.warning("canary gaps grew", replica=replica_id, why=problem)
            BusMetrics.canary_shifts.inc()
            self._good.clear()
        self._doubted.pop(replica_id, None)
        self._proved = max(self._proved, manifest.version)
        self._good.append(gaps)
        return None

    def _beyond_bounds(self, gaps: Gaps, dtype: Dtype) -> str | None:
        largest = self._max_gap or LARGEST[dtype]
        if gaps.largest > largest:
            return (
                f"logprobs differ from the trainer's by up to {gaps.largest:.3g} nats, "
                f"more than {largest:g} (canary_max_gap)"
            )
        if gaps.mean > MEAN_SHARE * largest:
            return (
                f"logprobs differ from the trainer's by {gaps.mean:.3g} nats on average, "
                f"more than {MEAN_SHARE * largest:g} (a 64th of canary_max_gap)"
            )
        return None

    def _unlike_others(self, gaps: Gaps, dtype: Dtype) -> str | None:
        if len(self._good) < ENOUGH or gaps.mean <= ROUNDING[dtype]:
            return None
        times = 1 + SPREADS / math.sqrt(gaps.tokens)
        for name, gap, good in (
            ("on average", gaps.mean, statistics.median(one.mean for one in self._good)),
            ("at the ninth decile", gaps.high, statistics.median(one.high for one in self._good)),
        ):
            if gap > times * good:
                return (
                    f"logprobs differ from the trainer's by {gap:.3g} nats {name}, more than "
                    f"{times:.2g} times the {good:.3g} of the last {len(self._good)} good answers"
                )
        return None


def _coarsest(manifest: WeightManifest) -> Dtype:
    """The element type of the weights that rounds most."""
    return max(
        (one.dtype for one in manifest.tensors), key=LARGEST.__getitem__, default=Dtype.FLOAT32
    )
