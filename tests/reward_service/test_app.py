"""The Serve application, in Serve's local testing mode and over a real handle."""

import gc
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service import app
from services.reward_service.config import RewardServiceConfig


@pytest.fixture(autouse=True)
def collected_again() -> Iterator[None]:
    """The process of the tests is not a replica's."""
    yield
    gc.unfreeze()


def test_the_application_is_one_deployment_named_like_the_service() -> None:
    built = app.build(RewardServiceConfig(replicas=2, num_cpus=0.5))
    deployment = built._bound_deployment
    assert deployment.name == "reward_service"
    assert deployment.num_replicas == 2
    assert deployment.ray_actor_options["num_cpus"] == 0.5


async def test_the_deployment_scores_and_ends_its_sandboxes(function_job) -> None:
    replica = app.RewardReplica(RewardServiceConfig(slots=1, use_bubblewrap=False))
    await replica.__serve_build_asgi_app__()
    try:
        job: ScoreJob = function_job("def f(a, b):\n    return a + b")
        (score,) = await replica.score([job])
        assert score.verdict is Verdict.ACCEPTED
        await replica.check_health()
        slots = [worker.answers for worker in replica._scoring.sandbox._workers]
    finally:
        replica.__del__()
    assert not any(slot.alive for slot in slots)


async def test_a_replica_never_looks_again_at_the_modules_of_its_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole collection of them holds the loop up for 0.08 s."""

    async def start() -> None:
        assert gc.get_freeze_count() == 0

    replica = app.RewardReplica(RewardServiceConfig(slots=1))
    monkeypatch.setattr(replica._scoring, "start", start)
    await replica.__serve_build_asgi_app__()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 10_000


async def test_an_unhealthy_service_asks_serve_for_a_new_replica(monkeypatch) -> None:
    replica = app.RewardReplica(RewardServiceConfig(slots=1, use_bubblewrap=False))
    await replica.__serve_build_asgi_app__()
    try:
        monkeypatch.setattr(type(replica._scoring), "healthy", False)
        with pytest.raises(RuntimeError, match="no sandbox"):
            await replica.check_health()
    finally:
        replica.__del__()


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="slot"):
        RewardServiceConfig.from_data({"slot": 3}, source="deploy.yaml")


def test_more_slots_than_cores_are_refused_where_the_replica_starts(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5})
    config = RewardServiceConfig(slots=4)  # a file for another machine can be read
    with pytest.raises(InvalidInput, match=r"slots: 4 is not usable.*3 cores") as problem:
        app.RewardReplica(config)
    assert problem.value.field == "slots"
    RewardServiceConfig(slots=3).check_cores()
    assert RewardServiceConfig().slots == 3


def test_replicas_follow_the_queued_cpu_seconds() -> None:
    built = app.build(RewardServiceConfig(replicas=1, max_replicas=4))
    scaling = built._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 4)
    for queued, wanted in ({}, 1), ({"a": 5.0}, 1), ({"a": 15.0, "b": 11.0}, 3):
        context = SimpleNamespace(
            aggregated_metrics={"queued_cpu_s": queued},
            capacity_adjusted_min_replicas=1,
            policy_state={},
        )
        assert app.wanted_replicas(context)[0] == wanted
