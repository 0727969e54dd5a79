"""The Serve application, in Serve's local testing mode and over a real handle."""

import pytest
from ray import serve

from services.protocol.errors import InvalidInput
from services.protocol.reward_service import ScoreJob, Verdict
from services.reward_service import app
from services.reward_service.config import RewardServiceConfig


def test_the_application_is_one_deployment_named_like_the_service() -> None:
    built = app.build(RewardServiceConfig(replicas=2, num_cpus=0.5))
    deployment = built._bound_deployment
    assert deployment.name == "reward_service"
    assert deployment.num_replicas == 2
    assert deployment.ray_actor_options["num_cpus"] == 0.5


async def test_the_deployment_scores_and_ends_its_sandboxes(function_job) -> None:
    deployment = app.RewardDeployment.func_or_class
    replica = deployment.__new__(deployment)
    await replica.__init__(RewardServiceConfig(slots=1, use_bubblewrap=False))
    try:
        job: ScoreJob = function_job("def f(a, b):\n    return a + b")
        (score,) = await replica.score([job])
        assert score.verdict is Verdict.ACCEPTED
        await replica.check_health()
        slots = [seat.answers for seat in replica._scoring.sandbox._seats]
    finally:
        replica.__del__()
    assert not any(slot.alive for slot in slots)


async def test_an_unhealthy_service_asks_serve_for_a_new_replica(monkeypatch) -> None:
    deployment = app.RewardDeployment.func_or_class
    replica = deployment.__new__(deployment)
    await replica.__init__(RewardServiceConfig(slots=1, use_bubblewrap=False))
    try:
        monkeypatch.setattr(type(replica._scoring), "healthy", False)
        with pytest.raises(RuntimeError, match="no sandbox"):
            await replica.check_health()
    finally:
        replica.__del__()


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="slot"):
        RewardServiceConfig.from_data({"slot": 3}, source="deploy.yaml")
    assert isinstance(app.RewardDeployment, serve.Deployment)
