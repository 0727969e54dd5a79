"""What a replica's answer to the canary says of the weights that it serves."""

import math

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.weights.weight_bus import Report
from services.protocol.weights.weights import CanaryLogprobs

_VERSIONS_KEPT = 8

log = Log("weight_bus")


class Canaries:
    """The trainer's answers for the versions published last."""

    def __init__(self) -> None:
        self._logprobs: dict[int, CanaryLogprobs] = {}

    def put(self, version: int, logprobs: CanaryLogprobs) -> None:
        """Add a version; the oldest beyond the limit goes."""
        self._logprobs[version] = logprobs
        while len(self._logprobs) > _VERSIONS_KEPT:
            del self._logprobs[min(self._logprobs)]

    def get(self, version: int) -> CanaryLogprobs | None:
        """The trainer's answer, None while it is not known."""
        return self._logprobs.get(version)


def judge(report: Report, expected: CanaryLogprobs | None, max_gap: float) -> str | None:
    """Export a canary report; returns what is wrong with the weights, None if nothing is known.

    Outputs that did not move are an alarm and no more: a step may be too small to show.
    """
    tags = {"replica": report.replica_id}
    if report.canary_logprobs is None or expected is None:
        BusMetrics.canary_missed.inc(tags=tags)
        return None
    gap = largest_gap(report.canary_logprobs, expected)
    BusMetrics.canary_gap.set(gap, tags)
    if report.canary_unmoved:
        BusMetrics.canary_unmoved.inc(tags=tags)
        log.warning("canary did not move", replica=report.replica_id, version=report.version)
    if gap <= max_gap:
        return None
    return (
        f"logprobs differ from the trainer's by up to {gap:.3g}, "
        f"more than canary_max_gap {max_gap:g}"
    )


def largest_gap(answered: CanaryLogprobs, expected: CanaryLogprobs) -> float:
    """The largest difference of any token, nats; infinite where they cannot be compared."""
    if [len(one) for one in answered] != [len(one) for one in expected]:
        return math.inf
    gaps = [
        abs(mine - trainers)
        for one, other in zip(answered, expected, strict=True)
        for mine, trainers in zip(one, other, strict=True)
    ]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps, default=0.0)
