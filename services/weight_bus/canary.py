"""What a replica's answer to the canary says of the weights that it serves."""

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.weight_bus import Report

log = Log("weight_bus")


def judge(report: Report, max_gap: float) -> str | None:
    """Export a canary report; returns what is wrong with the weights, None if nothing is known.

    Outputs that did not move are an alarm and no more: a step may be too small to show.
    """
    tags = {"replica": report.replica_id}
    if report.canary_gap is None:
        BusMetrics.canary_missed.inc(tags=tags)
        return None
    BusMetrics.canary_gap.set(report.canary_gap, tags)
    if report.canary_unmoved:
        BusMetrics.canary_unmoved.inc(tags=tags)
        log.warning("canary did not move", replica=report.replica_id, version=report.version)
    if report.canary_gap <= max_gap:
        return None
    return (
        f"logprobs differ from the trainer's by up to {report.canary_gap:.3g}, "
        f"more than canary_max_gap {max_gap:g}"
    )
