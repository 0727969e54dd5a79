"""Findings: what the figures of a run say of its learning, and what to try."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from services.ledger.ledger import LedgerReader
from services.orchestrator.core.results import FULL_REWARD, NO_REWARD
from services.protocol.run.orchestrator import Finding, LedgerCounts, RunConfig

STALE = "stale"
"""The ledger's reason for groups that expired because they were too old."""

_ENOUGH_BATCHES = 3
_MOST, _MANY = 0.75, 0.2
_QUARTER = 4
_FEWEST_STEPS = 8
_GAIN, _LOSS = 0.02, 0.1


def findings(run: RunConfig, ledger: LedgerReader) -> list[Finding]:
    """What keeps a run from learning, by its sample groups so far.

    None before a few batches of them are closed.
    """
    counts, stale = ledger.counts(), ledger.reasons("expired").get(STALE, 0)
    closed = counts.trained + counts.filtered + counts.failed + stale
    if closed < _ENOUGH_BATCHES * run.batch_groups:
        return []
    found = []
    if counts.filtered >= _MOST * closed:
        found.append(_of_equal_rewards(run, counts.filtered, closed, ledger.reasons("filtered")))
    if stale >= _MANY * closed:
        found.append(_of_stale_groups(run, stale, closed))
    if counts.failed >= _MANY * closed:
        found.append(_of_failures(counts.failed, closed, ledger.reasons("failed")))
    return found


def gain(
    run: RunConfig, before: float | None, after: float | None, rewards: Sequence[float | None]
) -> tuple[str, float, float] | None:
    """By which rate a run is judged, and that rate at its beginning and its end.

    The held-out pass rate where it was measured twice, else the mean reward of the first and the
    last quarter of the train steps; a step of given answers alone has none. None for a run of
    few steps, and where rewards stay level while a model learns: a curriculum chooses harder
    tasks, and dynamic sampling leaves out solved ones.
    """
    if len(rewards) < _FEWEST_STEPS:
        return None
    if before is not None and after is not None:
        return "held-out pass rate", before, after
    if run.curriculum is not None or run.schedule.dynamic_sampling:
        return None
    known = [reward for reward in rewards if reward is not None]
    if len(known) < _FEWEST_STEPS:
        return None
    part = len(known) // _QUARTER
    return "mean reward", fmean(known[:part]), fmean(known[-part:])


def of_no_gain(
    run: RunConfig, counts: LedgerCounts, measured: tuple[str, float, float] | None
) -> Finding | None:
    """That the run learned nothing, where it did not; None where it learned or nobody knows."""
    if measured is None:
        return None
    name, before, after = measured
    worse = before - after >= _LOSS
    if after - before >= _GAIN or (before >= 1 - _GAIN and not worse):
        return None
    rate = (
        f"{before:.0%} -> {after:.0%}" if name != "mean reward" else f"{before:.2f} -> {after:.2f}"
    )
    text = f"nothing was learned: {name} {rate}, {counts.trained} sample groups trained"
    learning_rate = run.algorithm.learning_rate
    if worse:
        advice = (
            f"Training made the model worse: lower algorithm.learning_rate (now {learning_rate:g}),"
            f" algorithm.minibatches (now {run.algorithm.minibatches}) or schedule.max_staleness "
            f"(now {run.schedule.max_staleness}); see clip fractions (docs/diagnostics.md)"
        )
    elif counts.trained < counts.filtered:
        advice = "Most sample groups had nothing to learn from: begin with the findings below"
    else:
        advice = (
            f"Rewards differed and the model hardly moved: raise algorithm.learning_rate (now "
            f"{learning_rate:g}) three to ten times, or train more steps; see "
            "trainer.kl_behaviour and grad_norm (docs/diagnostics.md)"
        )
    return Finding(kind="no_gain", text=text, advice=advice)


def _of_equal_rewards(
    run: RunConfig, filtered: int, closed: int, reasons: Mapping[str, int]
) -> Finding:
    text = (
        f"{filtered} of {closed} sample groups ({filtered / closed:.0%}) taught nothing, because "
        f"their rewards were equal: {_listed(reasons)}"
    )
    group_size = f"group_size (now {run.group_size})"
    if 2 * reasons.get(NO_REWARD, 0) >= filtered:
        advice = (
            "The reward was not reached. Grade an answer that you know is right (`millrace "
            f"grade`); then try easier tasks, a curriculum, a larger {group_size}, or a model "
            "that has seen such answers"
        )
    elif 2 * reasons.get(FULL_REWARD, 0) >= filtered:
        advice = "The tasks are solved already: try harder ones"
    else:
        advice = (
            f"Give rewards that tell answers apart, or try a larger {group_size} or "
            f"sampling.temperature (now {run.sampling.temperature:g})"
        )
    return Finding(kind="equal_rewards", text=text, advice=advice)


def _of_stale_groups(run: RunConfig, stale: int, closed: int) -> Finding:
    bound = run.schedule.max_staleness
    return Finding(
        kind="stale",
        text=f"{stale} of {closed} sample groups ({stale / closed:.0%}) were dropped as older than "
        f"{bound} policy versions",
        advice=f"Raise schedule.max_staleness (now {bound}), sample fewer groups at a time "
        "(schedule.batches_in_flight, oversample), or write schedule.on_stale: wait",
    )


def _of_failures(failed: int, closed: int, reasons: Mapping[str, int]) -> Finding:
    return Finding(
        kind="failures",
        text=f"{failed} of {closed} sample groups ({failed / closed:.0%}) failed: "
        f"{_listed(reasons)}",
        advice="Read the first failure (`millrace status RUN_ID`), and docs/runbook.md for its "
        "reason",
    )


def _listed(reasons: Mapping[str, int]) -> str:
    """Sample groups by reason, the most frequent first."""
    by_count = sorted(reasons.items(), key=lambda one: -one[1])
    return ", ".join(f"{count} {reason}" for reason, count in by_count)
