"""`millrace audit`: the options, and how the findings are shown."""

import argparse
import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from millrace_tools.audit.endpoint import check_server
from millrace_tools.audit.findings import AuditReport, Finding, Verdict
from millrace_tools.audit.named import ENVIRONMENT, run_file_of
from millrace_tools.command import FAILED, command, option
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput

if TYPE_CHECKING:
    from millrace_tools.audit.audit import Audit
    from millrace_tools.audit.checks.training import TrainedRun
    from millrace_tools.audit.training import Training

_STYLES = {Verdict.PASS: "", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}
_POSITIVE = (
    *("tasks", "episodes", "parallel", "timeout", "samples"),
    *("step_seconds", "tokens_per_second", "slots", "train_steps"),
)
_OF_MODEL = ("judge_url", "judge_model", "step_seconds")


@command(
    "audit",
    *ENVIRONMENT,
    option("--tasks", type=int, default=16, help="tasks that are played (16)"),
    option("--episodes", type=int, default=500, help="for memory and time (500)"),
    option("--parallel", type=int, default=8, help="episodes at a time (8)"),
    option("--timeout", type=float, default=60.0, help="seconds of one episode (60)"),
    option("--seed", type=int, default=0, help="of random answers (0)"),
    option("--only", nargs="+", metavar="CHECK", help="such as reward.leak, or all of reward"),
    option("--agent", metavar="COMMAND", help="plays tasks of `environment: external`"),
    option("--answers", metavar="FILE", help="JSON lines: task_id, good and bad answers"),
    option("--url", help="of an OpenAI-compatible server, without /v1: can its model learn this?"),
    option("--model", help="as that server calls it; left out, the run file's"),
    option("--key-env", metavar="NAME", help="environment variable with its API key"),
    option("--samples", type=int, default=8, help="answers of that model to each task (8)"),
    option("--tries", type=int, default=4, help="its tries at each task to be paid wrongly (4)"),
    option("--judge-url", metavar="URL", help="of a server whose model looks at what was paid"),
    option("--judge-model", metavar="MODEL", help="as that server calls it"),
    option("--judge-key-env", metavar="NAME", help="environment variable with its API key"),
    option("--step-seconds", type=float, help="of a train step of the run on your GPUs"),
    option("--tokens-per-second", type=float, default=40.0, help="of one answer there (40)"),
    option("--slots", type=int, default=64, help="answers that a replica samples at a time (64)"),
    option("--train-steps", type=int, help="train for so many steps here, with three seeds"),
    option("--train-model", metavar="FOLDER", help="the small model that is trained"),
    option("--deployment", metavar="FILE", help="the Serve file that registers your graders"),
    option("--out", type=Path, default=Path("audit"), help="folder of the report (audit)"),
)
def audit(arguments: argparse.Namespace, console: Console) -> int:
    """Look for rewards that nobody earned, before a model finds them; status 1 if a check fails.

    It plays episodes with scripted answers, on this machine, without a cluster; and, with --url,
    with those of a model.

    Raises:
        InvalidInput: an option or the run file cannot be used.
    """
    _check(arguments)
    arguments.run_file = run_file_of(arguments)
    logging.getLogger("millrace.reward_service").setLevel(logging.ERROR)
    logging.getLogger("millrace.orchestrator").setLevel(logging.ERROR)
    # Graders take a second to import; only this command and `grade` need them.
    from millrace_tools.audit.audit import Audit

    whole = Audit(arguments, lambda finding: _tell(finding, console))
    training = _training(arguments) if whole.wants_training else None
    arguments.out.mkdir(parents=True, exist_ok=True)
    trained: Sequence[TrainedRun] | str | None = None
    try:
        asyncio.run(whole.play())
        trained = None if training is None else training.outcome(console)
    except KeyboardInterrupt:  # what has been found until then is not lost
        stopped = None if training is None else "the audit was interrupted"
        _write(whole, stopped, arguments.out)
        raise
    report = _write(whole, trained, arguments.out)
    failed = len(report.failed)
    words = f"{failed} failed" if failed else "nothing failed"
    print_line(f"{words}: {report.episodes} episodes; {arguments.out / 'audit.html'}", console)
    return FAILED if failed else 0


def _write(
    whole: "Audit", trained: "Sequence[TrainedRun] | str | None", folder: Path
) -> AuditReport:
    """Write the report, its page and the run file; `trained` as for `Audit.ended`."""
    from millrace_tools.audit.page import page

    report, run_file = whole.ended(trained)
    (folder / "audit.json").write_text(report.text, encoding="utf-8")
    (folder / "audit.html").write_text(page(report), encoding="utf-8")
    (folder / "run.yaml").write_text(run_file, encoding="utf-8")
    return report


def _training(arguments: argparse.Namespace) -> "Training":
    from millrace_tools.audit.checks.training import LEAST_STEPS
    from millrace_tools.audit.training import Training  # which imports Ray

    if arguments.train_steps < LEAST_STEPS:
        raise InvalidInput("--train-steps", arguments.train_steps, f"At least {LEAST_STEPS}.")
    return Training(arguments)


def _check(arguments: argparse.Namespace) -> None:
    for name in _POSITIVE:
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise InvalidInput(_spelt(name), value, "It must be above 0.")
    if arguments.tries < 0:
        raise InvalidInput("--tries", arguments.tries, "It must be 0, for no search, or above.")
    for name in _OF_MODEL:
        if arguments.url is None and (value := getattr(arguments, name)) is not None:
            raise InvalidInput(_spelt(name), value, "It needs a model: --url.")
    if arguments.train_steps is None and arguments.train_model is not None:
        raise InvalidInput("--train-model", arguments.train_model, "It needs --train-steps.")
    check_server(arguments)
    check_server(arguments, "judge-")


def _spelt(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _tell(finding: Finding, console: Console) -> None:
    line = f"{finding.verdict.value:12} {finding.check:22} {finding.evidence}"
    print_line(line, console, _STYLES.get(finding.verdict, "dim"))
