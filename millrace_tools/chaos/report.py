"""The report of a campaign: its losses, and the recovery time of each fault."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from millrace_tools.chaos.observation import InjectedFault, Leases, Observation
from millrace_tools.chaos.script import Target
from services.protocol.run.orchestrator import RunState

NOTICED_S = 60.0
"""A lease that is lost later than this after a fault is not attributed to it."""

TAKES_LEASES = frozenset({Target.REPLICA, Target.ENGINE, Target.RAYLET, Target.NODE})
"""A lease that is lost after a fault of one of these is not attributed to an earlier fault."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One fault, and the seconds until the cluster recovered.

    Attributes:
        leased_s: until as many replicas were leased as at the fault; 0 if none lost its lease;
            None: not until the end.
        stepped_s: until the next train step; None: none until the end.
        answered_s: until the end of the first call of a client that was sent after the fault.
    """

    at_s: float
    fault: str
    target: str
    victim: str
    refused: str
    leased_s: float | None
    stepped_s: float | None
    answered_s: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """A campaign in figures.

    Attributes:
        lost: each loss, in words; must be empty.
        recoveries: of every fault, in their order.
        totals: counts by name.
    """

    lost: tuple[str, ...]
    recoveries: tuple[Recovery, ...]
    totals: dict[str, Any]


def make_report(seen: Observation) -> Report:
    """Evaluate a campaign."""
    return Report(
        lost=tuple(_lost(seen)),
        recoveries=tuple(_recovery(seen, injected) for injected in seen.faults),
        totals=_totals(seen),
    )


def _lost(seen: Observation) -> Iterable[str]:
    for call in seen.calls:
        if call.problem:
            yield f"a {call.kind} call sent at {call.sent_s:.1f} s failed: {call.problem}"
    for audit in seen.audits:
        if audit.off:
            yield f"the ledger was off by {audit.off} at {audit.at_s:.1f} s"
        if audit.skipped:
            yield f"{audit.skipped} prompts were skipped at {audit.at_s:.1f} s"
    unread_s = seen.ended_s - (seen.audits[-1].at_s if seen.audits else 0.0)
    if unread_s > NOTICED_S or not seen.audits:
        yield f"the ledger could not be read in the last {unread_s:.0f} s"
    yield from _lost_of_the_run(seen)
    yield from _lost_versions(seen)
    if not seen.all_leased:
        held = len(seen.leases[-1].leased) if seen.leases else 0
        yield (
            f"{held} of {seen.expected} replicas have a lease at the end; if they were only late, "
            "give them longer: --settle"
        )
    if seen.lasting:
        yield f"{seen.lasting} faults were not undone in time: each ends with its `for`"


def _lost_of_the_run(seen: Observation) -> Iterable[str]:
    if not seen.progress:
        yield "the run was never seen"
        return
    first, last = seen.progress[0], seen.progress[-1]
    if failed := last.ledger.failed - first.ledger.failed:
        yield f"{failed} sample groups failed"
    if last.state is RunState.FAILED:
        yield f"the run failed: {last.detail}"
    stale_s = seen.ended_s - last.at_s
    if stale_s > NOTICED_S:
        yield f"the run was not seen in the last {stale_s:.0f} s"


def _lost_versions(seen: Observation) -> Iterable[str]:
    """A version is lost when fewer are known at the end than were; a bus that has just been
    restarted learns them from its members, so a dip in between is none."""
    known = [-1 if one.newest_version is None else one.newest_version for one in seen.leases]
    if known and known[-1] < max(known):
        yield f"the newest version went from {max(known)} to {known[-1]}"
    for before, after in pairwise(seen.leases):
        same = before.bus_id == after.bus_id
        if same and (after.newest_version or 0) < (before.newest_version or 0):
            versions = f"{before.newest_version} to {after.newest_version}"
            yield f"a bus went from version {versions} at {after.at_s:.1f} s"


def _recovery(seen: Observation, injected: InjectedFault) -> Recovery:
    begun = injected.at_s
    step = seen.step_at(begun)
    stepped = (one.at_s for one in seen.progress if one.at_s > begun and one.step > step)
    answered = (call.ended_s for call in seen.calls if call.sent_s > begun and not call.problem)
    return Recovery(
        at_s=round(begun, 2),
        fault=injected.spec.fault,
        target=injected.spec.target,
        victim=injected.victim,
        refused=injected.refused,
        leased_s=_leased_again(seen.leases, begun, _until(seen, begun)),
        stepped_s=_since(begun, next(stepped, None)),
        answered_s=_since(begun, min(answered, default=None)),
    )


def _until(seen: Observation, begun: float) -> float:
    """From when on lost leases are attributed to another fault."""
    later = (
        one.at_s
        for one in seen.faults
        if one.at_s > begun and one.spec.target in TAKES_LEASES and not one.refused
    )
    return min([begun + NOTICED_S, *later])


def _leased_again(leases: list[Leases], begun: float, until: float) -> float | None:
    before = [len(one.leased) for one in leases if one.at_s <= begun]
    held = before[-1] if before else 0
    dips = (one.at_s for one in leases if begun < one.at_s < until and len(one.leased) < held)
    dip = next(dips, None)
    if dip is None:
        return 0.0
    whole = (one.at_s for one in leases if one.at_s > dip and len(one.leased) >= held)
    return _since(begun, next(whole, None))


def _since(begun: float, then: float | None) -> float | None:
    return None if then is None else round(then - begun, 2)


def _totals(seen: Observation) -> dict[str, Any]:
    last = seen.progress[-1] if seen.progress else None
    return {
        "seconds": round(seen.ended_s, 1),
        "faults": sum(not one.refused for one in seen.faults),
        "calls": len(seen.calls),
        "calls_retried": sum(call.retries for call in seen.calls),
        "ledger_audits": len(seen.audits),
        "replicas": seen.expected,
        "train_step": None if last is None else last.step,
        "ledger": None if last is None else last.ledger.model_dump(),
    }
