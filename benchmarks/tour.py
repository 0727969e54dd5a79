"""From an empty folder to a first learning curve, a changed grader and a killed replica, timed.

    python -m benchmarks.tour --json

Types what docs/tour.md says: clones this repository, `make demo` with every package fetched
anew, and the rest in namespaces of its own, which needs root. `--json` keeps the times and
writes the table of that page.
"""

import tempfile
from pathlib import Path

from benchmarks.report import ROOT, machine, markdown, options_of, with_table, write
from millrace_tools.capacity.machine import free_port
from tests.operations.shell_walk import Typed, walk_afresh, why_no_namespaces
from tests.operations.tour import PAGE, tour

MOST_S = 1800.0


def main() -> None:
    """Walk, print the times, and write them if asked."""
    options = options_of(__doc__, "tour").parse_args()
    if (why := why_no_namespaces()) is not None:
        raise SystemExit(f"error: no namespaces here, {why}")
    with tempfile.TemporaryDirectory(prefix="millrace-tour-") as folder:
        stages = [*installed(Path(folder)), *tour(Path(folder) / "millrace", most_s=MOST_S)]
    for stage in stages:
        print(f"{stage.seconds:8.1f} s  {stage.name}")
    if options.json:
        kept = [{"name": one.name, "seconds": round(one.seconds, 1)} for one in stages]
        write(options.json, machine() | {"stages": kept})
        page = ROOT / PAGE
        page.write_text(with_table(page.read_text(), "tour", table(stages)))


def installed(folder: Path) -> list[Typed]:
    """Clone, install and demo."""
    steps = [
        ("`git clone`", f"git clone --quiet {ROOT} millrace\ncd millrace"),
        ("every package fetched and installed", "make .venv/ready"),
        ("`make demo`: a first learning curve", f"make demo PORT={free_port()}"),
    ]
    stages = walk_afresh(folder, steps, most_s=MOST_S)
    assert list(folder.glob("millrace/runs/*/learning_curve.png"))
    return stages


def table(stages: list[Typed]) -> str:
    """The page's table of times."""
    rows, total = [["since the start", "stage", "seconds"]], 0.0
    for stage in stages:
        total += stage.seconds
        clock = f"{total // 60:.0f} min {total % 60:02.0f} s"
        rows.append([clock, stage.name, f"{stage.seconds:.0f}"])
    return markdown(rows)


if __name__ == "__main__":
    main()
