"""The tables of docs/learning.md, made from the results of `benchmarks.learning`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.learning.matrix import (
    ALGORITHM_BOUNDS,
    ALGORITHMS,
    CORRECTIONS,
    SHOP,
    STALENESS,
    WITH_PRESET,
    compared,
    label,
    reference_of,
    stale_algorithm_name,
    staleness_name,
)
from benchmarks.learning.results import Outcome, Results
from benchmarks.report import ROOT, markdown, with_table

Rows = list[list[str]]
PAGE = ROOT / "docs" / "learning.md"
LEARNED = 0.8
LAST_STEPS = 10
LAST_EVALUATIONS = 4


def filled(page: str, results: Results) -> str:
    """The page with the tables of these results between its marks."""
    tables = {
        "presets": _curves_table(results, "presets"),
        "algorithms": _curves_table(results, "algorithms"),
        "settings": _settings_table("algorithm", ALGORITHMS),
        "corrections": _settings_table("correction", CORRECTIONS),
        "stale algorithms": bounds_table(
            results, "algorithm", WITH_PRESET, stale_algorithm_name, ALGORITHM_BOUNDS
        ),
        "staleness": bounds_table(results, "correction", CORRECTIONS, staleness_name, STALENESS),
        "rewards": _curves_table(results, SHOP),
        "measured": _measured_table(results),
        "health": _health_table(results),
    }
    for name, table in tables.items():
        page = with_table(page, name, markdown(table))
    return page


def _curves_table(results: Results, part: str) -> Rows:
    reference = results.of(reference_of(part))
    beside = f"of `{label(reference_of(part))}`"
    head = ["configuration", "held-out before", "after, by seed", beside]
    head += [f"mean of the last {LAST_EVALUATIONS}, by seed", beside]
    head += [f"steps to {LEARNED:.0%}, by seed", "staleness, mean and max"]
    found = filter(None, map(results.of, compared(part)))
    return [head, *(_curve_row(outcomes, reference) for outcomes in found)]


def _curve_row(outcomes: Sequence[Outcome], reference: Sequence[Outcome]) -> list[str]:
    return [
        f"`{label(outcomes[0].name)}`",
        _each(one.before for one in outcomes),
        _each(one.after for one in outcomes),
        _compared(outcomes, reference, lambda one: one.after),
        _each(late_mean(one) for one in outcomes),
        _compared(outcomes, reference, late_mean),
        ", ".join(str(steps_to(one) or "never") for one in outcomes),
        _staleness(outcomes),
    ]


def _compared(
    outcomes: Sequence[Outcome], reference: Sequence[Outcome], rate: Callable[[Outcome], float]
) -> str:
    """The mean over seeds of the rate's ratio to the reference's of the same seed."""
    ratios = [
        rate(one) / rate(other) for one in outcomes for other in reference if one.seed == other.seed
    ]
    return f"{fmean(ratios):.2f}" if ratios else ""


def late_mean(one: Outcome) -> float:
    """Mean pass rate of the last evaluations, over which one bad train step weighs less."""
    return fmean(rate for _, rate in one.heldout[-LAST_EVALUATIONS:])


def steps_to(one: Outcome, rate: float = LEARNED) -> int | None:
    """The first train step after which a pass rate of at least `rate` was measured."""
    return next((step for step, passed in one.heldout if passed >= rate), None)


def _settings_table(head: str, settings: Mapping[str, Mapping[str, Any]]) -> Rows:
    rows = [[head, "keys of the run file"]]
    for name, keys in settings.items():
        said = ", ".join(
            f"`{key}: {_yaml(value)}`" for key, value in _flat(keys.get("algorithm", keys))
        )
        said += "".join(
            f", `schedule.{key}: {_yaml(value)}`" for key, value in _flat(keys.get("schedule", {}))
        )
        rows.append([f"`{name}`", said or "none"])
    return rows


def _yaml(value: object) -> str:
    """A value as a run file has it."""
    return str(value) if isinstance(value, str | float) else json.dumps(value)


def _flat(keys: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def bounds_table(
    results: Results,
    head: str,
    names: Iterable[str],
    named: Callable[[str, int], str],
    bounds: Sequence[int],
) -> Rows:
    """A row for each name that has run, a column for each bound."""
    rows = [[head, *(f"bound {bound}" for bound in bounds)]]
    for name in names:
        cells = [_cell(results.of(named(name, bound))) for bound in bounds]
        if any(cells):
            rows.append([f"`{name}`", *cells])
    return rows


def _cell(outcomes: Sequence[Outcome]) -> str:
    """Held-out pass rate at the end and, in brackets, that of sampled answers before it."""
    return "; ".join(
        f"collapsed at step {len(one.reward)}"
        if one.collapsed
        else f"{one.after:.2f} ({last_reward(one):.2f})"
        for one in outcomes
    )


def last_reward(one: Outcome) -> float:
    """Mean reward of the last batches: the share of sampled answers that passed."""
    return fmean(one.reward[-LAST_STEPS:])


def _measured_table(results: Results) -> Rows:
    rows = [["", *(f"bound {bound}" for bound in STALENESS)]]
    every = [
        [one for name in CORRECTIONS for one in results.of(staleness_name(name, bound))]
        for bound in STALENESS
    ]
    rows.append(["runs", *(str(len(outcomes)) for outcomes in every)])
    rows.append(["staleness, mean and max", *map(_staleness, every)])
    return rows


def _health_table(results: Results) -> Rows:
    every = results.outcomes
    mismatches = [value or 0.0 for one in every for value in one.diagnostics["mismatch_max"]]
    steps = sum(len(one.reward) for one in every)
    failures = sum(sum(one.failures.values()) for one in every)
    return [
        ["over all runs", ""],
        ["runs, train steps", f"{len(every)}, {steps:,}"],
        ["sample groups that failed", str(failures)],
        ["engine and trainer under the same version, largest gap", f"{max(mismatches):.0e} nats"],
    ]


def _staleness(outcomes: Sequence[Outcome]) -> str:
    """Of the groups of each batch, the first steps left out, before which nothing is stale."""
    means = [value for one in outcomes for value in one.staleness_mean[max(STALENESS) :]]
    largest = [value for one in outcomes for value in one.staleness_max]
    return f"{fmean(means):.1f}, {max(largest)}" if means else ""


def _each(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:.2f}" for rate in rates)
