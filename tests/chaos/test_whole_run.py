"""The demo under a random fault every few seconds: it learns as well, and nothing is lost.

One private cluster, two runs of the same seed: the first undisturbed, the second while
`millrace chaos` hits everything that it may draw, its clients ask and the ledger is audited.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.protocol.run.orchestrator import RunState, RunStatus
from tests.chaos.demo_cluster import DemoCluster, demo_cluster

STEPS = 24
EVERY_S = 4.0
RUN_S = 900.0
EVALUATION = {"tasks": 100, "every": STEPS}
SPREAD = 0.3
"""Between undisturbed runs of one seed: timing decides which weights sample an answer, and an
operation of the example that a run does not find costs a sixth of the tasks."""

pytestmark = pytest.mark.timeout(3 * RUN_S)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    with demo_cluster(tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(demo: DemoCluster) -> RunStatus:
    started = demo.start_run(steps=STEPS, evaluation=EVALUATION)
    return demo.follow(started.run_id, RUN_S)


def rates(status: RunStatus) -> tuple[float, float]:
    """Held-out pass rates before and after."""
    summary = status.summary
    assert summary is not None
    assert summary.heldout_pass_rate_before is not None
    assert summary.heldout_pass_rate_after is not None
    return summary.heldout_pass_rate_before, summary.heldout_pass_rate_after


def test_under_faults_the_demo_learns_as_well_and_nothing_is_lost(
    demo: DemoCluster, undisturbed: RunStatus, tmp_path: Path
) -> None:
    before, after = rates(undisturbed)
    assert after > before + SPREAD, "the undisturbed run learns too little to compare with"

    run_id = demo.start_run(steps=STEPS, evaluation=EVALUATION).run_id
    report = tmp_path / "report.json"
    options = ["--seed", "0", "--for", str(RUN_S), "--every", str(EVERY_S), "--json", str(report)]
    chaos = demo.chaos(run_id, *options)
    try:
        status = demo.follow(run_id, RUN_S)
        said, _ = chaos.communicate(timeout=RUN_S)
    finally:
        chaos.kill()
    print(said)
    assert status.state is RunState.FINISHED, status.detail
    assert status.step == STEPS
    assert rates(status)[1] > after - SPREAD
    assert chaos.returncode == 0, said

    drawn = json.loads(report.read_text())
    assert drawn["lost"] == []
    done = {(one["fault"], one["target"]) for one in drawn["recoveries"] if not one["refused"]}
    assert len(done) >= 5, done
    assert drawn["totals"]["calls"] > 0
    assert drawn["totals"]["calls_retried"] == 0
    assert drawn["totals"]["ledger_audits"] > 0
    assert status.ledger.failed == status.ledger.in_flight == 0
    assert not stopped()


def stopped() -> list[psutil.Process]:
    """Processes below this one that are frozen still."""
    below = psutil.Process(os.getpid()).children(recursive=True)
    return [one for one in below if one.is_running() and one.status() == psutil.STATUS_STOPPED]
