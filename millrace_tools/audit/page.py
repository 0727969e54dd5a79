"""The report of an audit as one HTML file."""

from millrace_tools.audit.findings import AuditReport, Finding, Verdict
from services.page.report.document import document
from services.page.report.elements import Child, el, table

_CLASSES = {
    Verdict.PASS: "best",
    Verdict.WARN: "warning",
    Verdict.FAIL: "error",
    Verdict.NOT_MEASURED: "muted",
}


def page(report: AuditReport) -> str:
    """The whole file; the same report makes the same file."""
    failed = len(report.failed)
    verdict = f"{failed} failed" if failed else "Nothing failed"
    found = ", ".join(
        f"{sum(finding.verdict is one for finding in report.findings)} {one}" for one in Verdict
    )
    about = (
        f"millrace audit, {report.made_at} UTC: {report.tasks} tasks, {report.episodes} episodes"
    )
    body = el(
        "body",
        {"class": "single"},
        el("h1", None, f"{verdict}: {report.subject}"),
        el("p", {"class": "muted"}, f"{about}; {found}"),
        el("p", {"class": "muted"}, f"Each check alone: {report.command} --only CHECK"),
        table(["check", "asks", "found", "evidence"], [_row(one) for one in report.findings]),
    )
    return document(verdict, body)


def _row(finding: Finding) -> list[Child]:
    verdict = el("span", {"class": _CLASSES[finding.verdict]}, finding.verdict.value)
    said = (finding.question, finding.evidence)
    texts = [el("td", {"class": "text"}, text) for text in said]
    return [finding.check, texts[0], verdict, texts[1]]
