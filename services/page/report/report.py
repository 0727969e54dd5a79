"""The report: runs side by side in one HTML file to send to somebody."""

import time
from typing import get_args
from xml.etree.ElementTree import Element

import yaml

from services.page.notes import RunNotes
from services.page.reading.comparison.comparison import ComparedRun, Comparison
from services.page.reading.comparison.figure_text import count, duration, number, percent
from services.page.reading.comparison.run_figures import RUN_FIGURES
from services.page.reading.metric_table import Axis
from services.page.report.answers import answers
from services.page.report.document import document
from services.page.report.elements import Child, el, table
from services.page.report.line_chart import PAINTS, Text, line_chart

SMOOTHING = 0.6
"""Of the curves, unless somebody asks for another: rewards of single batches jump."""

_POINTS, _PARTS = 200, 24
_X_TEXTS: dict[Axis, Text] = {"step": count, "time": duration, "tokens": count}
_Y_TEXTS: dict[str, Text] = {"share": percent, "seconds": duration, "count": count}


def report(comparison: Comparison, smoothing: float = SMOOTHING) -> str:
    """The whole file: it has no script, and its policy forbids to load anything."""
    runs = comparison.runs
    title = runs[0].figures.run_id if len(runs) == 1 else f"{len(runs)} runs side by side"
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    body = el(
        "body",
        {"class": "single" if len(runs) == 1 else None},
        el("h1", None, title),
        el("p", {"class": "muted"}, f"Millrace report, made {made}"),
        *(_finding(run) for run in runs),
        *_figures(comparison),
        *_changed(comparison),
        *_charts(comparison, smoothing),
        *(
            part
            for run in runs
            for part in (_error(run), _remarks(run), _answers(run), _config(run))
        ),
        *_definitions(),
    )
    return document(title, body)


def _letter(run: ComparedRun) -> Element:
    place = ord(run.letter) - ord("A")
    return el("b", {"class": f"letter c{place % PAINTS}", "title": run.figures.run_id}, run.letter)


def _finding(run: ComparedRun) -> Element:
    """What became of a run, in a sentence."""
    figures, texts = run.figures, run.figures.texts
    if figures.pass_final is not None and figures.pass_before is not None:
        rate = f"held-out pass rate {texts['pass_before']} → {texts['pass_final']}"
    elif figures.pass_best is not None:
        rate = f"held-out pass rate {texts['pass_best']}"
    else:
        rate = "held-out pass rate not measured"
    sampled = f"{texts['tokens_sampled']} tokens sampled"
    spent = f"{texts['steps']} train steps, {texts['elapsed_s']}, {sampled}"
    said = el(
        "span", None, el("strong", None, figures.run_id), f": {rate}; {spent}; ", texts["state"]
    )
    return el("p", {"class": "finding"}, _letter(run), said)


def _figures(comparison: Comparison) -> list[Child]:
    best = comparison.best
    head: list[Child] = ["", "run"]
    head += [el("th", {"title": one.definition}, one.title) for one in RUN_FIGURES]
    rows: list[list[Child]] = []
    for run in comparison.runs:
        run_id, texts = run.figures.run_id, run.figures.texts
        marked = [
            el("span", {"class": "best" if run_id in best[one.name] else None}, texts[one.name])
            for one in RUN_FIGURES
        ]
        rows.append([_letter(run), run_id, *marked])
    heading = "Runs, the best first" if len(comparison.runs) > 1 else "Figures"
    return [el("h2", None, heading), table(head, rows)]


def _changed(comparison: Comparison) -> list[Child]:
    if len(comparison.runs) < 2:
        return []
    heading, rows = el("h2", None, "Changed keys"), comparison.changed()
    if not rows:
        return [heading, el("p", {"class": "muted"}, "The run files are the same.")]
    cells: list[list[Child]] = [
        [el("code", None, row.key), *(el("code", None, value) for value in row.values)]
        for row in rows
    ]
    return [heading, table(["key", *map(_letter, comparison.runs)], cells)]


def _charts(comparison: Comparison, smoothing: float) -> list[Child]:
    """Each chart over each axis; which of them is seen is chosen without a script."""
    places = {run.letter: place for place, run in enumerate(comparison.runs)}
    figures: dict[str, Element] = {}
    choices: list[Child] = []
    for axis in get_args(Axis):
        for chart in comparison.charts(axis, smoothing, _POINTS):
            y_text = _Y_TEXTS.get(chart.curve.unit, number)
            drawn = line_chart(chart, places, _X_TEXTS[axis], y_text)
            drawn.set("class", f"by-{axis}")
            head = el("h3", {"title": chart.curve.definition}, chart.curve.title)
            figures.setdefault(chart.curve.column, el("figure", None, head)).append(drawn)
        choice = {"type": "radio", "name": "by", "id": f"by-{axis}", "class": "axis"}
        choice |= {"checked": "checked"} if axis == "step" else {}
        label = {"step": "by step", "time": "by time", "tokens": "by tokens sampled"}[axis]
        choices += [el("input", dict(choice)), el("label", {"for": f"by-{axis}"}, label)]
    if not figures:
        return [el("h2", None, "Curves"), el("p", {"class": "muted"}, "No train step yet.")]
    charts = el("div", {"class": "charts"}, *figures.values())
    return [el("section", None, el("h2", None, "Curves"), *choices, charts)]


def _error(run: ComparedRun) -> Child:
    text = run.folder.files.error()
    if not text:
        return None
    heading = el("h2", None, _letter(run), f" {run.figures.run_id} broke")
    return el("section", None, heading, el("pre", {"class": "error"}, text))


def _remarks(run: ComparedRun) -> Child:
    """What the run waited for, its alerts, and the notes of people."""
    waited = run.folder.timeline(None, None, _PARTS)["waited_most"]
    items = [
        el("li", None, el("strong", None, one["title"]), f" {one['why']}")
        for one in run.folder.alerts(None)
    ]
    for note in RunNotes(run.folder.path).all():
        by = f" {note['author'] or 'somebody'} at step {note['step']}"
        items.append(el("li", None, note["text"], el("span", {"class": "muted"}, by)))
    if not waited and not items:
        return None
    heading = el("h2", None, _letter(run), f" Remarks on {run.figures.run_id}")
    return el("section", None, heading, el("p", None, waited), el("ul", None, *items))


def _answers(run: ComparedRun) -> Child:
    found = answers(run.folder)
    if found is None:
        return None
    title, made = found
    heading = el("summary", None, _letter(run), f" {title} of {run.figures.run_id}")
    return el("details", {"open": "open"}, heading, made)


def _config(run: ComparedRun) -> Element:
    text = yaml.safe_dump(run.folder.files.config(), sort_keys=False, allow_unicode=True)
    heading = el("summary", None, _letter(run), f" Run file of {run.figures.run_id}")
    return el("details", None, heading, el("pre", None, text))


def _definitions() -> list[Child]:
    rows = [
        row
        for one in RUN_FIGURES
        for row in (el("dt", None, one.title), el("dd", None, one.definition))
    ]
    return [el("h2", None, "What the figures are"), el("dl", None, *rows)]
