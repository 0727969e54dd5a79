"""Metrics and log events of the trainer's steps and checkpoints."""

from services.observability.log import Log
from services.observability.metrics import TrainerMetrics
from services.protocol.trainer import CheckpointReport, TrainReport

_SKIPPED = ("skipped_updates", "skipped_critic_updates")

_log = Log("trainer")


def record_checkpoint(run_id: str, saved_step: int, report: CheckpointReport) -> int:
    """Count checkpoints written or failed after `saved_step`; returns the newest's step."""
    if report.saved_step > saved_step:
        TrainerMetrics.checkpoints.inc(tags={"run": run_id, "result": "written"})
        _log.info("checkpoint_written", run=run_id, step=report.saved_step)
    if report.problem:
        TrainerMetrics.checkpoints.inc(tags={"run": run_id, "result": "failed"})
        _log.warning("checkpoint_failed", run=run_id, why=report.problem)
    return report.saved_step


def record_start(run_id: str, refused: tuple[str, ...]) -> None:
    """Forget the gauges of other runs; warn of checkpoints passed over as they are not good."""
    for gauge in (TrainerMetrics.mismatch, TrainerMetrics.grad_norm, TrainerMetrics.diagnostic):
        gauge.keep_only({"run": run_id})
    for why in refused:
        TrainerMetrics.checkpoints.inc(tags={"run": run_id, "result": "refused"})
        _log.warning("checkpoint_refused", run=run_id, why=why, instead="the one before")


def record_step(run_id: str, report: TrainReport) -> None:
    """Measure a train step; warn of skipped updates."""
    run = {"run": run_id}
    TrainerMetrics.steps.inc(tags=run)
    TrainerMetrics.tokens.inc(report.tokens, tags=run)
    TrainerMetrics.mismatch.set(report.metrics["mismatch_max"], run)
    TrainerMetrics.grad_norm.set(report.metrics["grad_norm"], run)
    for name, value in report.metrics.items():
        TrainerMetrics.diagnostic.set(value, run | {"name": name})
    if report.skipped_groups:
        skipped = (report.metrics.get(name, 0.0) for name in _SKIPPED)
        TrainerMetrics.skipped_updates.inc(sum(skipped), tags=run)
        _log.warning(
            "update_skipped",
            why="loss or gradient not finite",
            run=run_id,
            step=report.step,
            groups=report.skipped_groups,
        )
    for phase, seconds in report.seconds.items():
        TrainerMetrics.phase.observe(seconds, tags=run | {"phase": phase})
