"""Runs stages one after another: a failure is one line, and the rest goes on."""

import time
from collections.abc import Callable, Sequence

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline, StageLate
from millrace_tools.accept.report import StageReport, Verdict
from millrace_tools.accept.stage import NotTried, Outcome, Stage
from services.protocol.errors import InvalidInput

_LONGEST_REASON = 300  # characters


def run_stages(
    stages: Sequence[Stage], bench: Bench, told: Callable[[StageReport], object]
) -> list[StageReport]:
    """Run every stage; `told` gets each report as soon as it is there."""
    reports = []
    for stage in stages:
        report = run_stage(stage, bench)
        told(report)
        reports.append(report)
    return reports


def run_stage(stage: Stage, bench: Bench) -> StageReport:
    """Run one stage, whatever becomes of it."""
    began = time.monotonic()
    verdict, outcome = _tried(stage, bench)
    return StageReport(
        name=stage.name,
        purpose=stage.purpose,
        verdict=verdict,
        seconds=round(time.monotonic() - began, 2),
        reason=_one_line(outcome.problem),
        figures=outcome.figures,
        curves=outcome.curves,
    )


def _tried(stage: Stage, bench: Bench) -> tuple[Verdict, Outcome]:
    if missing := _missing(stage, bench):
        return Verdict.NOT_TRIED, Outcome(problem=missing)
    try:
        outcome = stage.run(bench, Deadline(stage.deadline_s))
    except NotTried as reason:
        return Verdict.NOT_TRIED, Outcome(problem=str(reason))
    except (InvalidInput, StageLate) as error:
        return Verdict.FAILED, Outcome(problem=str(error))
    # Edge of the loop: whatever fails is the stage's reason, and the others are still tried.
    except Exception as error:  # noqa: BLE001
        return Verdict.FAILED, Outcome(problem=f"{type(error).__name__}: {error}")
    return Verdict.FAILED if outcome.problem else Verdict.PASSED, outcome


def _missing(stage: Stage, bench: Bench) -> str:
    if bench.gpus < stage.gpus:
        return f"GPUs needed: {stage.gpus}, here: {bench.gpus}"
    if stage.services and bench.services is None:
        return "the services do not run"
    return ""


def _one_line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _LONGEST_REASON else first[: _LONGEST_REASON - 3] + "..."
