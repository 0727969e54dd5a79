"""The report of an audit: what `audit.json` holds."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel

RFC_008 = {
    "reward.worthless": "semantic.floor_gap",
    "reward.gameable": "statistical.adversarial_floor",
    "reward.search": "statistical.adversarial_floor",
    "reward.leak": "semantic.no_solution_leakage",
    "reward.reference": "semantic.oracle_max",
    "reward.good": "semantic.oracle_max",
    "reward.bad": "semantic.canary_floor",
    "reward.reproducible": "semantic.verifier_determinism",
    "learnable.headroom": "statistical.headroom",
    "learnable.noise": "statistical.variance_bound",
    "learnable.training": "statistical.training_signal",
}
"""Ids of OpenEnv's RFC 008, "The 44-test mapping", for checks that ask what it asks.

Its issue #778 says what each id asks: the panel of the adversarial floor has degenerate policies,
injections into the grader and a search for reward; the variance bound is a reward's signal to
noise; canaries are hacked trajectories that come with the environment.
"""


class Verdict(StrEnum):
    """What a check found."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_MEASURED = "not measured"


class Finding(StrictModel):
    """One check.

    Attributes:
        check: its id, such as `reward.leak`.
        question: what it asks, for people.
        verdict: the answer.
        evidence: figures, and tasks by their ids.
        rfc_008: the check's id in OpenEnv's RFC 008, None if it has none.
        reproduce: a command that makes this check alone.
    """

    check: str
    question: str
    verdict: Verdict
    evidence: str
    rfc_008: str | None = None
    reproduce: str = ""

    @model_validator(mode="before")
    @classmethod
    def _name_it(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"rfc_008": RFC_008.get(data["check"])} | data


class AuditReport(StrictModel):
    """A whole audit.

    Attributes:
        schema_version: of this file; another number is another shape.
        millrace: version of the package.
        made_at: UTC, such as `2026-01-31 12:00`.
        subject: the run file's name.
        command: that made it, with all its options.
        tasks: how many were played.
        episodes: how many were played in all.
        findings: in the order of the checks.
    """

    schema_version: Literal[1] = 1
    millrace: str
    made_at: str
    subject: str
    command: str
    tasks: int = Field(ge=0)
    episodes: int = Field(ge=0)
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Checks that failed."""
        return tuple(one for one in self.findings if one.verdict is Verdict.FAIL)

    @property
    def text(self) -> str:
        """As it is written."""
        return self.model_dump_json(indent=1) + "\n"
