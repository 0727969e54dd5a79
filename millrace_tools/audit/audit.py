"""All checks of an audit, one after the other."""

import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

from millrace_tools.audit.answers import Candidate, always
from millrace_tools.audit.checks.operations import operation_findings
from millrace_tools.audit.checks.repeats import repeat_findings
from millrace_tools.audit.checks.reward import reward_findings
from millrace_tools.audit.findings import AuditReport, Finding
from millrace_tools.audit.subject import Subject
from millrace_tools.grade.code_job import reference_of
from services.protocol.run.task import Task


async def audit(
    subject: Subject,
    tasks: Sequence[Task],
    *,
    name: str,
    seed: int,
    episodes: int,
    told: Callable[[Finding], None],
) -> AuditReport:
    """Look at everything; `told` hears of each finding as it is made."""
    findings: list[Finding] = []

    def add(found: Sequence[Finding]) -> None:
        for one in found:
            told(one)
        findings.extend(found)

    add(await reward_findings(subject, tasks, seed))
    add(await repeat_findings(subject, tasks, [_known(task) for task in tasks]))
    add(await operation_findings(subject, tasks, episodes))
    return AuditReport(
        millrace=version("millrace"),
        made_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        subject=name,
        tasks=len(tasks),
        episodes=subject.episodes,
        findings=tuple(findings),
    )


def _known(task: Task) -> Candidate:
    """The right answer where there is one, and else one that says something."""
    reference = None if task.grader is None else reference_of(task.grader)
    if reference is not None:
        return Candidate("reference", always(reference))
    return Candidate("some words", always("an answer"))
