"""The report of `millrace chaos`, as a table and as JSON."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from millrace_tools.chaos.report import Report
from millrace_tools.output import print_line, print_rows

_COLUMNS = ("at s", "fault", "target", "leased again s", "next step s", "next answer s")
_SHOWN_LOSSES = 20


def show_report(report: Report, console: Console) -> None:
    """Print a line for every fault, and what was lost."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for one in report.recoveries:
        if not one.refused:
            times = map(_seconds, (one.leased_s, one.stepped_s, one.answered_s))
            rows.append((f"{one.at_s:.1f}", one.fault, one.target, *times))
    console.print()
    print_rows(rows, console)
    totals = report.totals
    retried = totals["calls_retried"]
    print_line(
        f"\n{totals['faults']} faults in {totals['seconds']:.0f} s; {totals['calls']} client calls,"
        f" {retried} retried; {totals['ledger_audits']} audits of the ledger; train step"
        f" {totals['train_step']}",
        console,
    )
    for loss in report.lost[:_SHOWN_LOSSES]:
        print_line(f"LOST  {loss}", console)
    if len(report.lost) > _SHOWN_LOSSES:
        print_line(f"LOST  and {len(report.lost) - _SHOWN_LOSSES} more losses", console)
    if not report.lost:
        print_line("Nothing was lost.", console)


def write_report(report: Report, path: Path) -> None:
    """The same as JSON, with everything that the table leaves out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"
