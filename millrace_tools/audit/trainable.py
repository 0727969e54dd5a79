"""The run file that an audit writes: the audited run, to be trained where there are GPUs."""

from collections.abc import Iterator

import yaml
from pydantic import ValidationError

from millrace_tools.audit.checks.replicas import REPLICAS, Plan
from millrace_tools.audit.findings import AuditReport
from services.protocol.run.orchestrator import RunConfig


def trainable(run: RunConfig, report: AuditReport, plan: Plan | None) -> str:
    """The run with absolute paths, and the schedule that keeps the given trainer busiest."""
    data = run.model_dump(mode="json", exclude_unset=True)
    data = {name: value for name, value in data.items() if value != []}
    if plan is not None and plan.schedule != run.schedule:
        other = data | {"schedule": plan.schedule.model_dump(mode="json", exclude_unset=True)}
        data = other if _is_valid(other) else data
    lines = "".join(f"# {line}\n" for line in _about(report))
    return lines + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _is_valid(data: object) -> bool:
    """Whether the run's algorithm goes with the schedule."""
    try:
        RunConfig.model_validate(data)
    except ValidationError:
        return False
    return True


def _about(report: AuditReport) -> Iterator[str]:
    yield f"{report.subject}, as millrace audit {report.millrace} played it, {report.made_at} UTC."
    if report.failed:
        yield f"Failed: {', '.join(one.check for one in report.failed)}."
    for one in report.findings:
        if one.check == REPLICAS:
            yield f"{one.question} {one.evidence}."
