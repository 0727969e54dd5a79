"""Replicas and cores for a given trainer, for work that can be added up by hand."""

import pytest

from millrace_tools.audit.checks.asked import Asked
from millrace_tools.audit.checks.replicas import Trainer, replica_finding
from millrace_tools.audit.findings import Verdict
from millrace_tools.audit.policy.forwarded_policy import Exchange
from millrace_tools.audit.subject import Outcome
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import Task
from tests.audit.test_audit import row

TRAINER = Trainer(step_s=10.0, tokens_per_s=10.0, slots=4)


def run(preset: str) -> RunConfig:
    """A batch is 16 answers."""
    data = {"name": "r", "task_file": "t", "model": "m", "steps": 1, "batch_groups": 8}
    return RunConfig.model_validate(data | {"group_size": 2, "schedule": {"preset": preset}})


def asked(*, tokens: int, seconds: float = 0.0, reward: float | None = 1.0) -> Asked:
    """One task, whose two answers take so many tokens, and so long beside the model."""
    answered = {"usage": {"completion_tokens": tokens}}
    exchange = Exchange([], answered, "", 3.0)
    outcomes = [Outcome(reward=reward, seconds=3.0 + seconds, episode=name) for name in "ab"]
    return Asked(
        tasks=[Task.model_validate(row(0))],
        samples=2,
        outcomes=outcomes,
        exchanges={"a": [exchange], "b": [exchange]},
        cpu_s=2.0,
    )


def test_the_least_replicas_that_keep_the_trainer_busy() -> None:
    # 16 answers of 20 s in 10 s need 32 places, which are 8 replicas.
    finding, plan = replica_finding(asked(tokens=200), run("async"), TRAINER)
    assert plan is not None
    assert plan.replicas in (8, 9)
    assert plan.busy > 0.9
    assert plan.episodes_per_s == pytest.approx(1.6 * plan.busy)
    assert finding.verdict is Verdict.PASS
    assert "and 4 cores for them" in finding.evidence, "1.6 episodes a second of 2 s each"


def test_a_schedule_that_lets_the_trainer_wait_is_told_beside_the_best() -> None:
    finding, plan = replica_finding(asked(tokens=100), run("sync"), TRAINER)
    assert plan is not None
    assert plan.schedule.preset != "sync"
    assert "`sync` keeps it busy for 4" in finding.evidence, "10 s of rollout, 10 s of training"
    assert f"`{plan.schedule.preset}` keeps it busy for" in finding.evidence


def test_time_beside_the_model_needs_no_replica() -> None:
    _, short = replica_finding(asked(tokens=20), run("async"), TRAINER)
    _, long = replica_finding(asked(tokens=20, seconds=5.0), run("async"), TRAINER)
    assert short is not None
    assert long is not None
    assert long.replicas == short.replicas == 1


def test_without_a_trainer_or_tokens_it_is_not_measured() -> None:
    for given, trainer in (
        (asked(tokens=20), None),
        (asked(tokens=0), TRAINER),
        (asked(tokens=20, reward=None), TRAINER),
    ):
        finding, plan = replica_finding(given, run("async"), trainer)
        assert (finding.verdict, plan) == (Verdict.NOT_MEASURED, None)
