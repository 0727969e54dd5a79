"""`millrace compare` and `millrace report`: runs side by side, from their directories."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from millrace_tools.command import command, option
from millrace_tools.output import print_line, print_rows
from services.disk import replace_file
from services.page.reading.comparison.comparison import MOST_COMPARED, Comparison
from services.page.reading.comparison.run_figures import RUN_FIGURES, read_figures
from services.page.reading.run_folder import RunFolder
from services.page.report.report import SMOOTHING, report
from services.protocol.errors import InvalidInput

REPORT = "millrace-report.html"
_RUN_ROOT = Path("runs")
_RUNS = option("runs", nargs="+", metavar="RUN", help="a run directory, or its name in runs/")


@command("compare", _RUNS)
def compare_runs(arguments: argparse.Namespace, console: Console) -> int:
    """Show runs side by side: figures, and the keys in which their run files differ.

    Raises:
        InvalidInput: a run is not there, or there are too few or too many.
    """
    if len(arguments.runs) < 2:
        raise InvalidInput("RUN", arguments.runs[0], "Give two runs or more to compare.")
    compared = comparison_of(arguments.runs)
    letters = [run.letter for run in compared.runs]
    for run in compared.runs:
        print_line(f"{run.letter}  {run.figures.run_id}", console)
    print_line("", console)
    best = compared.best
    rows = [["", *letters]]
    for figure in RUN_FIGURES:
        marked = best[figure.name]
        texts = (
            figure.text_of(run.figures) + (" *" if run.figures.run_id in marked else "")
            for run in compared.runs
        )
        rows.append([figure.title, *texts])
    print_rows(rows, console)
    if any(best.values()):
        print_line("* the best of these; the best run comes first", console)
    print_line("", console)
    if changed := compared.changed():
        print_rows([["changed key", *letters], *([k.key, *k.values] for k in changed)], console)
    else:
        print_line("The run files are the same.", console)
    return 0


@command(
    "report",
    _RUNS,
    option("--output", default=REPORT, metavar="FILE", help=f"({REPORT})"),
    option(
        "--smoothing", type=float, default=SMOOTHING, help=f"of curves, 0 to 0.99 ({SMOOTHING})"
    ),
)
def report_runs(arguments: argparse.Namespace, console: Console) -> int:
    """Write one HTML file about runs, to send to somebody.

    Raises:
        InvalidInput: a run is not there, there are too many, or the file cannot be written.
    """
    if not 0 <= arguments.smoothing <= 0.99:
        raise InvalidInput("--smoothing", arguments.smoothing, "Give a number from 0 to 0.99.")
    content = report(comparison_of(arguments.runs), arguments.smoothing).encode()
    path = Path(arguments.output)
    try:
        replace_file(path, content)
    except OSError as error:
        fix = f"It cannot be written: {error.strerror}. Give another file."
        raise InvalidInput("--output", arguments.output, fix) from None
    print_line(f"{path}: {len(content) / 1024:,.0f} KiB; open it in any browser.", console)
    return 0


def comparison_of(names: Sequence[str]) -> Comparison:
    """The runs of these folders or names.

    Raises:
        InvalidInput: a run is not there, or there are too many.
    """
    folders = {folder.path.resolve(): folder for folder in map(_folder, names)}
    if len(folders) > MOST_COMPARED:
        raise InvalidInput("RUN", len(folders), f"Give at most {MOST_COMPARED} runs.")
    return Comparison([(folder, read_figures(path, path.name)) for path, folder in folders.items()])


def _folder(name: str) -> RunFolder:
    inside = _RUN_ROOT / name
    return RunFolder.open(inside if inside.is_dir() and not Path(name).is_dir() else name, "RUN")
