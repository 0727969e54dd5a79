"""A chart as SVG: lines of several runs over each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from services.page.reading.comparison.comparison import Chart
from services.page.reading.comparison.curves import Line
from services.page.report.elements import el

PAINTS = 7
"""Colours; a further run has the colour of an earlier one, and another dash."""

Text = Callable[[float], str]
_WIDTH, _HEIGHT = 400, 190
"""About as wide as on a screen, so that letters have their size there."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 22, 8, 26
_TICKS = 5
_LINE_HEIGHT = 12


@dataclass(frozen=True)
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def line_chart(chart: Chart, places: Mapping[str, int], x_text: Text, y_text: Text) -> Element:
    """Draw a chart.

    Args:
        chart: its lines by the letter of the run.
        places: the place of each letter, which gives its colour.
        x_text: a value of the horizontal axis as people read it.
        y_text: one of the vertical axis.
    """
    lines = chart.lines.values()
    x = _Scale(*_bounds([0.0, *(v for one in lines for v in one.x)]), _LEFT, _WIDTH - _RIGHT)
    values = [value for one in lines for value in one.y]
    bounds = _of_shares(values, chart.dots) if chart.curve.unit == "share" else _bounds(values)
    y = _Scale(*bounds, _HEIGHT - _BOTTOM, _TOP)
    return el(
        "svg",
        {
            "viewBox": f"0 0 {_WIDTH} {_HEIGHT}",
            "role": "img",
            "aria-label": f"{chart.curve.title}: {_told(chart, y_text)}",
        },
        *(_level(y.at(tick), y_text(tick)) for tick in ticks(y.low, y.high)),
        *(_foot(x.at(tick), x_text(tick)) for tick in ticks(x.low, x.high, 1.0)),
        *(
            drawn
            for letter, line in chart.lines.items()
            for drawn in _drawn(line, chart.dots, places[letter], x, y, y_text)
        ),
        *(_ends(chart, places, x, y) if len(places) > 1 else ()),
    )


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Round numbers from `low` to `high`, some five of them, at least `least` apart."""
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(size * one for one in (1, 2, 5, 10) if size * one >= rough * 0.999))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, last + 1)]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """A little more than all values; never nothing."""
    low, high = min(values), max(values)
    space = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    # An amount is not drawn as if it could be less than nothing.
    return (low if low >= 0 and low < space else low - space), high + space


def _of_shares(values: Sequence[float], are_rates: bool) -> tuple[float, float]:
    """Of a whole: rates over all of it, others as far as they go."""
    return 0.0, 1.0 if are_rates else min(1.0, max(0.01, 1.1 * max(values)))


def _told(chart: Chart, y_text: Text) -> str:
    """The chart for people who hear it."""
    ends = (f"{letter} ends at {y_text(line.y[-1])}" for letter, line in chart.lines.items())
    return ", ".join(ends)


def _level(at: float, text: str) -> Element:
    line = {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": f"{at:.1f}", "y2": f"{at:.1f}"}
    label = el("text", {"x": _LEFT - 6, "y": f"{at + 3.5:.1f}", "class": "end"}, text)
    return el("g", None, el("line", {"class": "grid"} | line), label)


def _foot(at: float, text: str) -> Element:
    return el("text", {"x": f"{at:.1f}", "y": _HEIGHT - 8, "class": "middle"}, text)


def _drawn(line: Line, dots: bool, place: int, x: _Scale, y: _Scale, y_text: Text) -> list[Element]:
    paint = f"c{place % PAINTS} d{place // PAINTS}"
    kind = "dotted" if dots else "line"
    marks = [
        _dot(x.at(a), y.at(b), paint, y_text(b))
        for a, b in zip(line.x, line.y, strict=True)
        if dots or len(line.x) == 1
    ]
    if line.smooth:
        return [
            _path(line.x, line.y, x, y, f"line faint {paint}"),
            _path(line.x, line.smooth, x, y, f"line {paint}"),
            *marks,
        ]
    return [_path(line.x, line.y, x, y, f"{kind} {paint}"), *marks]


def _dot(x: float, y: float, paint: str, text: str) -> Element:
    place = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": 3, "class": f"dot {paint}"}
    return el("circle", place, el("title", None, text))


def _path(at: Sequence[float], values: Sequence[float], x: _Scale, y: _Scale, kind: str) -> Element:
    points = (f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(at, values, strict=True))
    return el("polyline", {"points": " ".join(points), "class": kind})


def _ends(chart: Chart, places: Mapping[str, int], x: _Scale, y: _Scale) -> list[Element]:
    """The letter of each run beside the end of its line, none upon another."""
    ends = [
        (y.at((line.smooth or line.y)[-1]), x.at(line.x[-1]), letter)
        for letter, line in chart.lines.items()
    ]
    made, free = [], 0.0
    for at, beside, letter in sorted(ends):
        free = max(at + 3.5, free + _LINE_HEIGHT)
        place = {"x": f"{beside + 6:.1f}", "y": f"{free:.1f}"}
        made.append(el("text", place | {"class": f"letter c{places[letter] % PAINTS}"}, letter))
    return made
