"""`millrace accept`: prove this machine, and write a report that can be sent to others."""

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.accept.report import Report, StageReport, Verdict
from millrace_tools.command import FAILED, command, option
from millrace_tools.output import print_line
from services.disk import replace_file, write_problem
from services.protocol.errors import InvalidInput

FOLDER = "millrace-accept"
REPORT, PAGE = "accept.json", "accept.html"
SERVICES = "services"
_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_TRIED: "dim"}


@command(
    "accept",
    option("--address", help="of a Ray cluster whose nodes are measured, too (none)"),
    option("--stage", action="append", metavar="NAME", help="only this one; may be repeated"),
    option("--quick", action="store_true", help="shorter stages, which prove less"),
    option("--json", action="store_true", help="print the report, and nothing else"),
    option("--output", type=Path, default=Path(FOLDER), metavar="FOLDER", help=f"({FOLDER})"),
)
def accept(arguments: argparse.Namespace, console: Console) -> int:
    """Prove this machine by stages, and write a report; status 1 if a stage failed.

    Raises:
        InvalidInput: there is no such stage, or the folder cannot be written.
    """
    logging.getLogger("millrace.reward_service").setLevel(logging.WARNING)
    # Ray takes seconds to import; only this command needs the stages.
    from millrace_tools.accept.bench import Bench
    from millrace_tools.accept.page import page
    from millrace_tools.accept.runner import run_stages
    from millrace_tools.accept.stages.every import chosen
    from millrace_tools.accept.stages.versions import hardware_here
    from millrace_tools.demo.demo import terminated_like_interrupted

    stages, folder = chosen(arguments.stage), _writable(arguments.output)
    quiet = Console(quiet=True)
    bench = Bench(
        folder=folder,
        quick=arguments.quick,
        address=arguments.address,
        hardware=hardware_here(),
        console=quiet,
    )
    done: list[StageReport] = []
    head = {
        "millrace": version("millrace"),
        "made_at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "quick": bench.quick,
        "hardware": bench.hardware,
    }

    def told(stage: StageReport) -> None:
        done.append(stage)
        report = _report(head, done)
        # After each one, so that a machine that fails as a whole leaves a report, too.
        replace_file(folder / REPORT, report.text.encode())
        replace_file(folder / PAGE, page(report).encode())
        if not arguments.json:
            print_line(_line(stage), console, _STYLES[stage.verdict])

    with terminated_like_interrupted(), bench.ending:
        run_stages(stages, bench, told)
    report = _report(head, done)
    if arguments.json:
        print_line(report.text.rstrip(), console)
    else:
        print_line(f"{folder / REPORT}; open {folder / PAGE} in any browser.", console)
    return FAILED if report.failed else 0


def _report(head: Mapping[str, Any], stages: Sequence[StageReport]) -> Report:
    return Report(
        **head,
        stages=tuple(stages),
    )


def _line(stage: StageReport) -> str:
    said = stage.reason or ", ".join(one.text for one in stage.figures)
    return f"{stage.verdict:9} {stage.name:18} {stage.seconds:7.1f} s  {said}"


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = f"It cannot be made: {error.strerror}. Give another."
        raise InvalidInput("--output", str(folder), fix) from None
    if problem := write_problem(folder):
        raise InvalidInput(
            "--output", str(folder), f"{problem}: give a folder that can be written."
        )
    return folder
