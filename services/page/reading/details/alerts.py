"""What of a run needs a person's attention, as far as its files tell."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.protocol.run.orchestrator import RunState

NEWEST = 10
"""Train steps that are looked at."""

_MOSTLY = 0.9
_NO_ENTROPY = 0.02
_EQUAL_REWARDS = "equal_rewards"
_TROUBLED = (RunState.FAILED, RunState.RECOVERING, RunState.DISK_FULL)
Alert = dict[str, Any]
Steps = Mapping[str, Sequence[float]]


def alerts(
    overview: Mapping[str, Any], steps: Steps, warnings: Sequence[Mapping[str, Any]]
) -> list[Alert]:
    """Alerts, the worst first: `level` is `bad` or `warning`, `why` says what to do.

    Args:
        overview: of the run.
        steps: numbers of its newest train steps, as `MetricTable.newest`.
        warnings: log events that were no good news, as `LogLines.warnings`.
    """
    findings = _findings(overview)
    found = [*_broken(overview), *(_found(one) for one in findings)]
    of_rewards = all(one["kind"] != _EQUAL_REWARDS for one in findings)
    found += _of_steps(steps, of_rewards=of_rewards)
    found += [*_stale(overview, steps), *(_logged(one) for one in warnings)]
    return sorted(found, key=lambda one: one["level"] != "bad")


def _broken(overview: Mapping[str, Any]) -> Iterator[Alert]:
    flow, status = overview.get("flow"), overview.get("status") or {}
    if error := overview.get("error", "").strip():
        yield _alert("bad", "The run broke", error.splitlines()[-1])
    elif status.get("state") in _TROUBLED:
        title = f"The run is {status['state'].replace('_', ' ')}"
        yield _alert("bad", title, str(status.get("detail", "")))
    if flow is None:
        yield _alert("bad", "The ledger cannot be read", str(overview.get("ledger_problem", "")))
    elif flow["imbalance"]:
        why = f"It is off by {flow['imbalance']:,}. This is a defect of Millrace: report it."
        yield _alert("bad", "The ledger does not balance", why)
    if problem := status.get("heldout_problem"):
        yield _alert("warning", "Held-out tasks were not all measured", problem)


def _findings(overview: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the orchestrator says that keeps the run from learning, or kept it."""
    for source in (overview.get("status"), overview.get("summary")):
        known = source.get("findings") if isinstance(source, Mapping) else None
        if isinstance(known, list) and known:
            fields = {"kind", "text", "advice"}
            return [one for one in known if isinstance(one, Mapping) and fields <= one.keys()]
    return []


def _found(finding: Mapping[str, Any]) -> Alert:
    return _alert("warning", str(finding["text"]), str(finding["advice"]))


def _of_steps(steps: Steps, *, of_rewards: bool) -> Iterator[Alert]:
    """Figures of the newest train steps that are out of bounds."""
    trained, filtered = (sum(steps.get(f"groups_{name}", ())) for name in ("trained", "filtered"))
    if of_rewards and filtered > _MOSTLY * (trained + filtered):
        title = f"{filtered / (trained + filtered):.0%} of the newest groups teach nothing"
        why = "All answers to a task get the same reward: choose harder or easier tasks."
        yield _alert("warning", title, why)
    if skipped := sum(steps.get("trainer.skipped_updates", ())):
        title = f"{skipped:g} of the newest updates were skipped"
        why = "Loss or gradient was not finite: lower `algorithm.learning_rate`."
        yield _alert("bad", title, why)
    entropy = steps.get("trainer.entropy")
    if entropy and entropy[-1] < _NO_ENTROPY:
        title = f"The policy's entropy is {entropy[-1]:.3f} nats"
        why = "It hardly varies its answers any more: raise `clip_high` or add `entropy_bonus`."
        yield _alert("warning", title, why)


def _stale(overview: Mapping[str, Any], steps: Steps) -> Iterator[Alert]:
    schedule = (overview.get("config") or {}).get("schedule")
    bound = schedule.get("max_staleness") if isinstance(schedule, Mapping) else None
    stale = max(steps.get("staleness_max", ()), default=0)
    if isinstance(bound, int) and stale > bound:
        title = f"A group was trained at staleness {stale:g}, above the bound of {bound}"
        yield _alert("bad", title, "This is a defect of Millrace unless `on_stale` masks.")


def _logged(one: Mapping[str, Any]) -> Alert:
    line = one["line"] or {}
    why = next(
        (str(line[name]) for name in ("error", "problem", "why", "first") if name in line), ""
    )
    known = {"event": one["event"], "count": one["count"], "newest": one["newest"]}
    level = "bad" if one["level"] == "error" else "warning"
    return _alert(level, one["event"].replace("_", " "), why) | known


def _alert(level: str, title: str, why: str) -> Alert:
    return {"level": level, "title": title, "why": why[:1000]}
