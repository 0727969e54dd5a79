"""The stages of `millrace accept` that need services, short ones, on the cluster of all tests."""

from pathlib import Path

import pytest
from rich.console import Console

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.report import StageReport, Verdict
from millrace_tools.accept.runner import run_stage
from millrace_tools.accept.services import Services
from millrace_tools.accept.stages.every import STAGES
from millrace_tools.accept.stages.versions import hardware_here
from tests.cluster.conftest import REPLICAS, Cluster


@pytest.fixture
def bench(cluster: Cluster, tmp_path: Path) -> Bench:
    services = Services(
        url=cluster.url, model_dir=cluster.model_dir, runs=tmp_path / "runs", replicas=REPLICAS
    )
    return Bench(
        folder=tmp_path,
        quick=True,
        address=None,
        hardware=hardware_here(),
        console=Console(quiet=True),
        services=services,
    )


def run(name: str, bench: Bench) -> StageReport:
    (stage,) = (one for one in STAGES if one.name == name)
    return run_stage(stage, bench)


def figures(report: StageReport) -> dict[str, float | str]:
    return {one.name: one.value for one in report.figures}


@pytest.mark.slow
def test_one_engine_is_measured_while_the_other_is_paused(bench: Bench, cluster: Cluster) -> None:
    report = run("engine", bench)
    assert report.verdict is Verdict.PASSED, report.reason
    assert figures(report)["speed"] > 0
    assert len(cluster.table().leased) == REPLICAS


def test_served_logprobs_are_exact_across_a_push(bench: Bench) -> None:
    report = run("logprobs", bench)
    assert report.verdict is Verdict.PASSED, report.reason
    found = figures(report)
    assert found["answers across a push"] >= 1
    assert found["tokens"] > 100
    assert 0 < found["largest gap"] < 1e-4


def test_an_engine_that_sleeps_gives_memory_back(bench: Bench) -> None:
    report = run("sleep", bench)
    assert report.verdict is Verdict.PASSED, report.reason


def test_an_answer_goes_on_when_its_engine_is_killed(bench: Bench, cluster: Cluster) -> None:
    report = run("kill", bench)
    assert report.verdict is Verdict.PASSED, report.reason
    assert figures(report)["engines of the answer"] == 2
    assert len(cluster.table().leased) == REPLICAS


@pytest.mark.slow
def test_the_example_trains_and_has_a_curve(bench: Bench) -> None:
    report = run("learning-separate", bench)
    assert report.verdict is Verdict.PASSED, report.reason
    (curve,) = report.curves
    assert curve.x == (1.0, 2.0, 3.0)
    assert report.seconds > 0
