"""`millrace audit`: the options, and how the findings are shown."""

import argparse
import asyncio
import logging
from pathlib import Path

from rich.console import Console

from millrace_tools.audit.findings import AuditReport, Finding, Verdict
from millrace_tools.command import FAILED, command, option
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput

_STYLES = {Verdict.PASS: "", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


@command(
    "audit",
    option("run_file", help="whose tasks, environments and graders are audited"),
    option("--tasks", type=int, default=16, help="tasks that are played (16)"),
    option("--episodes", type=int, default=500, help="for memory and time (500)"),
    option("--parallel", type=int, default=8, help="episodes at a time (8)"),
    option("--timeout", type=float, default=60.0, help="seconds of one episode (60)"),
    option("--seed", type=int, default=0, help="of random answers (0)"),
    option("--url", help="of an OpenAI-compatible server, without /v1: can its model learn this?"),
    option("--model", help="as that server calls it; left out, the run file's"),
    option("--key-env", metavar="NAME", help="environment variable with its API key"),
    option("--samples", type=int, default=8, help="answers of that model to each task (8)"),
    option("--deployment", metavar="FILE", help="the Serve file that registers your graders"),
    option("--agent", metavar="COMMAND", help="plays tasks of `environment: external`"),
    option("--out", type=Path, default=Path("audit"), help="folder of audit.json and audit.html"),
)
def audit(arguments: argparse.Namespace, console: Console) -> int:
    """Look for rewards that nobody earned, before a model finds them; status 1 if a check fails.

    It plays episodes with scripted answers, on this machine, without a cluster; and, with --url,
    with those of a model.

    Raises:
        InvalidInput: an option or the run file cannot be used.
    """
    for name in ("tasks", "episodes", "parallel", "timeout", "samples"):
        if (value := getattr(arguments, name)) <= 0:
            raise InvalidInput(f"--{name}", value, "It must be above 0.")
    if arguments.url is not None:
        from millrace_tools.audit.policy.forwarded_policy import check_server

        check_server(arguments)
    logging.getLogger("millrace.reward_service").setLevel(logging.ERROR)
    logging.getLogger("millrace.orchestrator").setLevel(logging.ERROR)
    report = asyncio.run(_audited(arguments, console))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "audit.json").write_text(report.text, encoding="utf-8")
    from millrace_tools.audit.page import page

    (arguments.out / "audit.html").write_text(page(report), encoding="utf-8")
    failed = len(report.failed)
    words = f"{failed} failed" if failed else "nothing failed"
    print_line(f"{words}: {report.episodes} episodes; {arguments.out / 'audit.html'}", console)
    return FAILED if failed else 0


async def _audited(arguments: argparse.Namespace, console: Console) -> AuditReport:
    # Graders take a second to import; only this command and `grade` need them.
    from millrace_tools.audit.audit import audit as run_audit
    from millrace_tools.audit.checks.learnable import not_asked
    from millrace_tools.audit.opened import opened
    from millrace_tools.audit.policy.scripted_policy import ScriptedPolicy

    async with ScriptedPolicy() as policy, opened(arguments, policy) as (run, tasks, subject):
        report = await run_audit(
            subject,
            tasks,
            name=run.name,
            seed=arguments.seed,
            episodes=arguments.episodes,
            told=lambda finding: _tell(finding, console),
        )
    asked = [not_asked()] if arguments.url is None else await _asked(arguments)
    for finding in asked:
        _tell(finding, console)
    return report.model_copy(update={"findings": (*report.findings, *asked)})


async def _asked(arguments: argparse.Namespace) -> list[Finding]:
    """What a model that somebody serves makes of the tasks."""
    from millrace_tools.audit.checks.learnable import learnable_findings
    from millrace_tools.audit.checks.tokens import token_findings
    from millrace_tools.audit.opened import opened
    from millrace_tools.audit.policy.forwarded_policy import forwarded

    async with (
        forwarded(arguments) as policy,
        opened(arguments, policy) as (_, tasks, subject),
    ):
        learnable = await learnable_findings(subject, tasks, arguments.samples)
        tokens = token_findings(policy.exchanges, await policy.max_model_len())
        return [*learnable, *tokens]


def _tell(finding: Finding, console: Console) -> None:
    line = f"{finding.verdict.value:12} {finding.check:20} {finding.evidence}"
    print_line(line, console, _STYLES.get(finding.verdict, "dim"))
