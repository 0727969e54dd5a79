"""The report of an acceptance as one HTML file."""

from xml.etree.ElementTree import Element

from millrace_tools.accept.report import Curve, Report, StageReport, Verdict
from services.page.reading.comparison.comparison import Chart
from services.page.reading.comparison.curves import Curve as ChartCurve
from services.page.reading.comparison.curves import Line
from services.page.reading.comparison.figure_text import count, duration, number
from services.page.report.document import document
from services.page.report.elements import Child, el, table
from services.page.report.line_chart import line_chart

_CLASSES = {Verdict.PASSED: "best", Verdict.FAILED: "error", Verdict.NOT_TRIED: "muted"}


def page(report: Report) -> str:
    """The whole file; the same report makes the same file."""
    verdict = f"{len(report.failed)} failed" if report.failed else "Known to work"
    tried = ", ".join(f"{report.count(one)} {one}" for one in Verdict)
    quick = ", quick" if report.quick else ""
    body = el(
        "body",
        {"class": "single"},
        el("h1", None, f"{verdict}: {report.hardware.text}"),
        el("p", {"class": "muted"}, f"millrace accept{quick}, {report.made_at} UTC: {tried}"),
        el("h2", None, "Stages"),
        table(
            ["stage", "verdict", "time", "figures", "shows"], [_row(one) for one in report.stages]
        ),
        *_charts(report),
        el("h2", None, "Machine"),
        table(["", ""], _machine(report)),
    )
    return document(verdict, body)


def _row(stage: StageReport) -> list[Child]:
    said = [one.text for one in stage.figures]
    verdict = el("span", {"class": _CLASSES[stage.verdict]}, stage.verdict.value)
    lines = "\n".join(filter(None, [stage.reason, *said]))
    figures = el("td", {"class": "text"}, lines)
    return [stage.name, verdict, duration(stage.seconds), figures, _wrapped(stage.purpose)]


def _wrapped(text: str) -> Element:
    return el("td", {"class": "text"}, text)


def _charts(report: Report) -> list[Child]:
    drawn = [
        el("figure", None, el("h3", None, f"{curve.title}, {stage.name}"), _chart(curve))
        for stage in report.stages
        for curve in stage.curves
    ]
    if not drawn:
        return []
    # As `report.css` shows a chart: beside the choice of its axis, which here is one.
    axis = {"type": "radio", "id": "by-step", "checked": "checked", "hidden": "hidden"}
    charts = el("div", {"class": "charts"}, *drawn)
    return [el("section", None, el("h2", None, "Learning"), el("input", axis), charts)]


def _chart(curve: Curve) -> Element:
    line = Line(list(curve.x), list(curve.y), [])
    chart = Chart(ChartCurve(curve.title, curve.title), False, {"A": line})
    drawn = line_chart(chart, {"A": 0}, count, number)
    drawn.set("class", "by-step")
    return drawn


def _machine(report: Report) -> list[list[Child]]:
    machine = report.hardware
    gpus = ", ".join(machine.gpus) or "none"
    rows = {
        "processor": f"{machine.cpu}, {machine.cores} cores",
        "memory": f"{machine.memory_gib:g} GiB",
        "GPUs": gpus if machine.gpu_gib is None else f"{gpus}; {machine.gpu_gib:g} GiB",
        "driver": machine.driver or "none",
        "system": machine.system,
        "Millrace": report.millrace,
    }
    return [[name, value] for name, value in rows.items()]
