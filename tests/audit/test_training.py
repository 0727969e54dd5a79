"""`millrace audit --train-steps`: verdicts of curves, and what is trained."""

from argparse import Namespace
from pathlib import Path

import pytest

from millrace_tools.audit.audit import Audit
from millrace_tools.audit.checks.learnable import not_asked
from millrace_tools.audit.checks.training import TrainedRun, training_finding
from millrace_tools.audit.findings import AuditReport, Verdict
from millrace_tools.audit.training import Training
from millrace_tools.command import INTERRUPTED
from millrace_tools.main import main
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunState
from tests.audit.test_audit import ROWS, run_file

RISES = (0.1, 0.2, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.7)
FLAT = (0.3, 0.5, 0.4, 0.3, 0.5, 0.4, 0.5, 0.3, 0.4)


def runs(*curves: tuple[float, ...], state: RunState = RunState.FINISHED) -> list[TrainedRun]:
    return [
        TrainedRun(seed=seed, rewards=one, state=state, detail="it ended")
        for seed, one in enumerate(curves)
    ]


@pytest.mark.parametrize(
    ("trained", "verdict", "words"),
    [
        (runs(RISES, RISES, RISES), Verdict.PASS, "mean gain +0.6"),
        (runs(FLAT, FLAT, FLAT), Verdict.WARN, "no clear rise"),
        (runs(RISES, RISES, FLAT[::-1]), Verdict.WARN, "no clear rise"),
        (runs(RISES[::-1], RISES[::-1], RISES[::-1]), Verdict.FAIL, "training lowers the reward"),
        (runs((0.0,) * 9, (), (0.0,)), Verdict.NOT_MEASURED, "it ended"),
        (runs(RISES, RISES, (0.5, 1.0)), Verdict.WARN, "seed 2 ended after 2 steps: it ended"),
        (runs(RISES, (0.5, 1.0), state=RunState.FAILED), Verdict.NOT_MEASURED, "seed 1 ended"),
        ("the services do not come up", Verdict.NOT_MEASURED, "the services do not come up"),
    ],
)
def test_a_verdict_needs_a_rise_on_every_seed(
    trained: list[TrainedRun] | str, verdict: Verdict, words: str
) -> None:
    found = training_finding(trained)
    assert (found.verdict, words in found.evidence) == (verdict, True), found.evidence


def test_what_an_interrupted_audit_has_found_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(audit: Audit) -> None:
        audit._add([not_asked()])
        raise KeyboardInterrupt

    monkeypatch.setattr(Audit, "play", interrupted)
    run_file(tmp_path, "good", ROWS)
    out = tmp_path / "audit"
    assert main(["audit", str(tmp_path / "run.yaml"), "--out", str(out)]) == INTERRUPTED
    report = AuditReport.model_validate_json((out / "audit.json").read_text())
    assert not_asked().check in [one.check for one in report.findings]
    assert (out / "audit.html").exists()


def options(folder: Path, **given: str | int | None) -> Namespace:
    run_file(folder, "good", ROWS)
    asked = {"run_file": folder / "run.yaml", "deployment": None, "train_model": None}
    return Namespace(**asked, out=folder, agent=None, parallel=1, train_steps=6, **given)


def test_training_needs_a_model_that_is_there(tmp_path: Path) -> None:
    given = options(tmp_path)
    with pytest.raises(InvalidInput, match="--train-model"):
        Training(given)
    given.train_model = str(tmp_path)
    with pytest.raises(InvalidInput, match=r"config\.json"):
        Training(given)
