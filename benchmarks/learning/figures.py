"""The figures of docs/learning.md, drawn from the results of `benchmarks.learning`."""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.learning.matrix import (
    CORRECTIONS,
    SHOP,
    STALENESS,
    compared,
    label,
    staleness_name,
)
from benchmarks.learning.results import Outcome, Results
from benchmarks.report import ROOT

IMAGES = ROOT / "docs" / "images"
_SMOOTHED_STEPS = 5

Curve = tuple[Sequence[float], Sequence[float]]


def draw(results: Results) -> list[Path]:
    """Draw every figure; returns the files."""
    figures = {
        "learning_presets.png": _part(results, "presets"),
        "learning_algorithms.png": _part(results, "algorithms"),
        "learning_staleness.png": _staleness(results),
        "learning_rewards.png": _heldout_rates(results, SHOP),
    }
    for name, figure in figures.items():
        FigureCanvasAgg(figure).print_png(str(IMAGES / name))
    return [IMAGES / name for name in figures]


def _part(results: Results, part: str) -> Figure:
    return two_curves({label(name): results.of(name) for name in compared(part)})


def two_curves(outcomes: Mapping[str, Sequence[Outcome]]) -> Figure:
    """Held-out pass rate and training reward by train step, one line a label."""
    figure = Figure(figsize=(11, 4.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (name, of_name) in enumerate(outcomes.items()):
        if of_name:
            _line(left, of_name, _heldout, label=name, place=place)
            _line(right, of_name, _reward, label=name, place=place)
    left.set_title("held-out pass rate, greedy")
    right.set_title(f"reward of sampled answers, mean of {_SMOOTHED_STEPS} steps")
    left.set_ylabel("share that passes")
    for axes in (left, right):
        _furnish(axes)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def _heldout_rates(results: Results, part: str) -> Figure:
    """Held-out pass rate alone, for runs whose rewards have different scales."""
    figure = Figure(figsize=(7.5, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(compared(part)):
        if outcomes := results.of(name):
            _line(axes, outcomes, _heldout, label=label(name), place=place)
    axes.set_ylabel("share that passes")
    _furnish(axes)
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _staleness(results: Results) -> Figure:
    """Training reward by train step: a panel for each bound, a line for each correction."""
    shown = {
        bound: lines
        for bound in STALENESS
        if any(lines := [results.of(staleness_name(name, bound)) for name in CORRECTIONS])
    }
    figure = Figure(figsize=(11, 6.4), dpi=110, layout="constrained")
    grid = figure.subplots(2, -(-len(shown) // 2), sharex=True, sharey=True, squeeze=False)
    labelled: dict[str, Any] = {}
    for axes, bound in zip_longest(grid.flatten(), shown):
        if bound is None:
            axes.axis("off")
            continue
        for place, (name, outcomes) in enumerate(zip(CORRECTIONS, shown[bound], strict=True)):
            if outcomes:
                labelled[name] = _line(axes, outcomes, _reward, label=name, place=place)
        axes.set_title(f"max_staleness {bound}")
        _furnish(axes)
    known = [name for name in CORRECTIONS if name in labelled]
    handles = [labelled[name] for name in known]
    figure.legend(handles, known, loc="outside right center", frameon=False)
    figure.supylabel(f"reward of sampled answers, mean of {_SMOOTHED_STEPS} steps")
    return figure


def _line(
    axes: Any,
    outcomes: Sequence[Outcome],
    curve: Callable[[Outcome], Curve],
    *,
    label: str,
    place: int,
) -> Any:
    """The mean over seeds, which is returned, and the range of them behind it."""
    curves = [curve(one) for one in outcomes]
    steps = sorted({step for xs, _ in curves for step in xs})
    values = np.array([np.interp(steps, xs, ys) for xs, ys in curves])
    color = f"C{place}"
    (line,) = axes.plot(steps, values.mean(axis=0), label=label, linewidth=1.6, color=color)
    if len(curves) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=color, alpha=0.12, linewidth=0)
    return line


def _heldout(one: Outcome) -> Curve:
    return [step for step, _ in one.heldout], [rate for _, rate in one.heldout]


def _reward(one: Outcome) -> Curve:
    """A running mean: a batch is few prompts, some easy and some hard."""
    width = min(_SMOOTHED_STEPS, len(one.reward))
    means = np.convolve(one.reward, np.full(width, 1 / width), mode="valid")
    return list(range(width, len(one.reward) + 1)), means.tolist()


def _furnish(axes: Any) -> None:
    axes.set_xlabel("train step")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
