"""The curves that are drawn over each other, and their smoothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.page.reading.metric_table import AXES, Axis, MetricTable, thinned
from services.protocol.run.figures import FIGURES


@dataclass(frozen=True)
class Curve:
    """A number of a train step, or of an evaluation.

    Attributes:
        column: its dotted name in `metrics.jsonl`.
        title: heading, with the unit.
        unit: `share`, `seconds`, `count` or empty: how its values are written.
        definition: what it is.
    """

    column: str
    title: str
    unit: str = ""
    definition: str = ""


_DRAWN = (
    ("reward", "Mean reward", ""),
    ("trainer.entropy", "Entropy, nats", ""),
    ("trainer.kl_behaviour", "KL divergence, nats", ""),
    ("response_tokens_mean", "Length of answers, tokens", ""),
    ("truncated", "Answers cut off", "share"),
    ("groups_filtered", "Filtered groups of a batch", "count"),
    ("trainer.learning_rate", "Learning rate", ""),
    ("trainer.grad_norm", "Gradient norm", ""),
    ("trainer.loss", "Loss", ""),
    ("trainer.mismatch_max", "Engine against trainer, nats", ""),
    ("staleness_mean", "Staleness, versions", ""),
    ("tokens_per_second", "Tokens a second", "count"),
    ("seconds.wait", "Waiting for a batch", "seconds"),
)
CURVES = tuple(Curve(column, title, unit, FIGURES[column]) for column, title, unit in _DRAWN)


def pass_rate_curve(heldout_set: str) -> Curve:
    """That of the evaluations of a held-out set."""
    definition = "pass@1: share of the set's tasks whose answer gets a reward of 1 or more."
    title = f"Held-out pass rate, {heldout_set}"
    return Curve(f"pass@1 {heldout_set}", title, "share", definition)


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average, without its bias towards 0 at the beginning.

    Args:
        values: one a train step; NaN where there is none, which stays so.
        weight: of what came before, from 0 (nothing changes) to below 1.
    """
    mean, norm, found = 0.0, 0.0, []
    for value in values:
        if not math.isnan(value):
            mean = weight * mean + (1 - weight) * value
            norm = weight * norm + (1 - weight)
        found.append(math.nan if math.isnan(value) else mean / norm)
    return found


@dataclass(frozen=True)
class Line:
    """The curve of one run, its points in their order on the axis.

    Attributes:
        x: places on the axis.
        y: values there.
        smooth: the values smoothed; empty if they are not.
    """

    x: list[float]
    y: list[float]
    smooth: list[float]


def line_of(
    table: MetricTable, column: str, axis: Axis, smoothing: float, points: int
) -> Line | None:
    """A column against an axis, means over train steps where there are more than `points`."""
    values, places = table.whole((column,)), table.whole(AXES[axis])
    if values is None or places is None:
        return None
    width = max(1, math.ceil(len(values) / points))
    smooth = smoothed(values, smoothing) if smoothing else values
    shown = zip(
        thinned(places, width, max), thinned(values, width), thinned(smooth, width), strict=True
    )
    known = [(x, y, s) for x, y, s in shown if x is not None and y is not None and s is not None]
    if not known:
        return None
    x, y, s = (list(one) for one in zip(*known, strict=True))
    return Line(x, y, s if smoothing else [])


def measured_line(table: MetricTable, rates: Mapping[int, float], axis: Axis) -> Line:
    """Held-out pass rates against an axis."""
    steps = sorted(rates)
    places = [table.place(float(step), axis) for step in steps]
    return Line(places, [rates[step] for step in steps], [])
