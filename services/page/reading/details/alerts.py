"""What of a run needs a person's attention, as far as its files tell."""

from collections.abc import Mapping, Sequence
from typing import Any

_NEWEST = 10
"""Train steps that are looked at."""
_MOSTLY = 0.9
_NO_ENTROPY = 0.02
_Column = Sequence[float | None]


def alerts(
    overview: Mapping[str, Any],
    columns: Mapping[str, _Column],
    warnings: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Alerts, the worst first: `level` is `bad` or `warning`, `why` says what to do.

    Args:
        overview: of the run.
        columns: numbers of its train steps.
        warnings: log events that were no good news, as `LogLines.warnings`.
    """
    found = [*_broken(overview), *_steps(overview, columns)]
    found += [_logged(one) for one in warnings]
    return sorted(found, key=lambda one: one["level"] != "bad")


def _broken(overview: Mapping[str, Any]) -> list[dict[str, Any]]:
    flow, status = overview.get("flow"), overview.get("status") or {}
    found = []
    if overview.get("error"):
        found.append(_alert("bad", "The run broke", "Its traceback is in Learning."))
    if flow is None:
        problem = str(overview.get("ledger_problem", ""))
        found.append(_alert("bad", "The ledger cannot be read", problem))
    elif flow["imbalance"]:
        why = f"It is off by {flow['imbalance']:,}. This is a defect of Millrace: report it."
        found.append(_alert("bad", "The ledger does not balance", why))
    if problem := status.get("heldout_problem"):
        found.append(_alert("warning", "Held-out tasks were not all measured", problem))
    return found


def _steps(overview: Mapping[str, Any], columns: Mapping[str, _Column]) -> list[dict[str, Any]]:
    """Figures of the newest train steps that are out of bounds."""

    def newest(name: str) -> list[float]:
        return [value for value in columns.get(name, ())[-_NEWEST:] if value is not None]

    found = []
    trained, filtered = sum(newest("groups_trained")), sum(newest("groups_filtered"))
    if filtered > _MOSTLY * (trained + filtered):
        title = f"{filtered / (trained + filtered):.0%} of the newest groups teach nothing"
        why = "All answers to a task get the same reward: choose harder or easier tasks."
        found.append(_alert("warning", title, why))
    if skipped := sum(newest("trainer.skipped_updates")):
        title = f"{skipped:g} of the newest updates were skipped"
        why = "Loss or gradient was not finite: lower `algorithm.learning_rate`."
        found.append(_alert("bad", title, why))
    entropy = newest("trainer.entropy")
    if entropy and entropy[-1] < _NO_ENTROPY:
        title = f"The policy's entropy is {entropy[-1]:.3f} nats"
        why = "It hardly varies its answers any more: raise `clip_high` or add `entropy_bonus`."
        found.append(_alert("warning", title, why))
    bound = (overview.get("config") or {}).get("schedule", {})
    bound = bound.get("max_staleness") if isinstance(bound, Mapping) else None
    stale = max(newest("staleness_max"), default=0)
    if isinstance(bound, int) and stale > bound:
        title = f"A group was trained at staleness {stale:g}, above the bound of {bound}"
        found.append(_alert("bad", title, "This is a defect of Millrace unless `on_stale` masks."))
    return found


def _logged(one: Mapping[str, Any]) -> dict[str, Any]:
    line = one["line"] or {}
    why = next(
        (str(line[name]) for name in ("error", "problem", "why", "first") if name in line), ""
    )
    known = {"event": one["event"], "count": one["count"], "newest": one["newest"]}
    level = "bad" if one["level"] == "error" else "warning"
    return _alert(level, one["event"].replace("_", " "), why) | known


def _alert(level: str, title: str, why: str) -> dict[str, Any]:
    return {"level": level, "title": title, "why": why[:1000]}
