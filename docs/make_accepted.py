"""Writes the table of docs/accept.md from the reports in benchmarks/reports.

`python docs/make_accepted.py`, after a report has come; it writes each report's page, too.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from millrace_tools.accept.page import page as page_of
from millrace_tools.accept.report import Report, StageReport, Verdict
from millrace_tools.accept.stages.every import STAGES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accept.md"
REPORTS = ROOT / "benchmarks" / "reports"
_TABLE = re.compile(r"(<!-- accepted -->\n).*?(<!-- end -->)", re.S)
_ABSENT = "-"


def reports() -> dict[Path, Report]:
    """Every report by its path, in the order of the folders' names."""
    return {path: Report.read(path) for path in sorted(REPORTS.glob("*/accept.json"))}


def page(text: str) -> str:
    """docs/accept.md with its table made anew.

    Raises:
        ValueError: it has no place, or several, for the table.
    """
    made = "\n".join(_lines(list(reports().values()))) + "\n"
    filled, places = _TABLE.subn(lambda mark: mark[1] + made + mark[2], text)
    if places != 1:
        raise ValueError(f"docs/accept.md has {places} places for the table, not one")
    return filled


def pages() -> dict[Path, str]:
    """The page of each report, by its path."""
    return {path.with_suffix(".html"): page_of(report) for path, report in reports().items()}


def _lines(found: list[Report]) -> Iterator[str]:
    with_gpu = sum(bool(one.hardware.gpus) for one in found)
    if not with_gpu:
        yield "No machine with a GPU is among them yet: every row below is of CPUs."
        yield ""
    yield _row("stage", *(f"{one.hardware.text}; {one.made_at[:10]}" for one in found))
    yield _row(*["---"] * (1 + len(found)))
    for name in (one.name for one in STAGES):
        yield _row(f"`{name}`", *(_cell(report, name) for report in found))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cell(report: Report, name: str) -> str:
    stage = next((one for one in report.stages if one.name == name), None)
    if stage is None:
        return _ABSENT
    said = stage.reason if stage.verdict is not Verdict.PASSED else _figures(stage)
    return f"{stage.verdict}: {said}" if said else stage.verdict.value


def _figures(stage: StageReport) -> str:
    return ", ".join(one.text for one in stage.figures)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
