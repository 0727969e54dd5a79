"""An agent names one of the run's graders, whose verdict is the reward; and it asks for a task."""

import asyncio
import json
from typing import Any

import pytest

from services.observability.metrics import RouterMetrics
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.loop.attempt import Answers
from services.orchestrator.rollout.rollout import RolloutFailed
from services.orchestrator.rollout.scoring import Scorer
from services.protocol.errors import InvalidInput
from services.protocol.reward.grader import ExactGrader, JudgeGrader
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.orchestrator import RunConfig
from services.protocol.session import SessionEnding
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring
from services.side_by_side import running
from tests.outside.conftest import request, sampler
from tests.outside.test_outside_agents import chat, end, take
from tests.router.conftest import Cluster

GRADERS = {
    "shout": ExactGrader(kind="exact", expected="HELLO"),
    "kind": JudgeGrader(kind="judge", name="anyone", rubric="10 is kind"),
}
RUN_FILE: dict[str, Any] = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1}
RUN_FILE |= {"group_size": 2, "task_file": "t", "graders": {"a": {"kind": "regex", "pattern": "x"}}}


async def ended(cluster: Cluster, *endings: dict[str, Any], **how: Any) -> list[Any]:
    """What arrives of episodes that end so: trajectory and grader of each."""
    arrived: list[Any] = []

    def note(_: int, trajectory: Any, score: Any = None, /, *, grader: Any = None) -> None:
        assert score is None
        arrived.append((trajectory, grader))

    rollout = request("say\nHELLO", n=len(endings), grader=how.pop("grader", False))
    async with sampler(cluster, GRADERS, **how) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(rollout, note))
        for ending in endings:
            taken = await take(cluster)
            assert taken["graders"] == ["shout", "kind"]
            await chat(cluster, taken["session"]["id"], "say\nHELLO")
            assert await end(cluster, taken["session"]["id"], **ending) == 200
        await asyncio.wait_for(sampling, 60)
    return arrived


@pytest.mark.parametrize("barrier", [False, True], ids=["as it arrives", "with its batch"])
async def test_the_verdict_of_the_grader_that_an_agent_named_is_the_reward(cluster, barrier):
    right, wrong = {"grader": "shout", "text": "HELLO"}, {"grader": "shout", "text": "hello"}
    arrived = await ended(cluster, right, wrong, {"text": "secret"}, grader=True)
    scorer = Scorer(Scoring(RewardServiceConfig(slots=1)), OrchestratorConfig())
    task = request(grader=True).task
    assert task is not None
    answers = Answers(
        task=task,
        run_id="r",
        name="g",
        scorer=scorer,
        algorithm=AlgorithmConfig(),
        barrier=barrier,
        trace={},
        progressed=lambda: None,
    )
    async with running(scorer.run(), name="scorer"):
        for index, (trajectory, grader) in enumerate(arrived):
            answers.add(index, trajectory, grader=grader)
        graded, ungraded = await asyncio.wait_for(answers.scores(), 60)
    by_text = {one.trajectory.text: one.score.reward for one in graded}
    assert (by_text, ungraded) == ({"HELLO": 1.0, "hello": 0.0, "secret": 1.0}, [])


async def test_a_grader_without_a_text_has_the_last_answer(cluster):
    arrived = await ended(cluster, {"grader": "shout"}, {"grader": "shout"})
    assert [one.text.endswith("HELLO") for one, _ in arrived] == [True, True]
    assert [grader for _, grader in arrived] == [GRADERS["shout"]] * 2


async def test_a_judge_is_told_the_task_and_that_of_a_live_agent_is_not_known(cluster):
    ((_, told), _) = await ended(cluster, {"grader": "kind"}, {"grader": "kind"})
    assert told.question == "say\nHELLO"
    ((_, told),) = await ended(cluster, {"grader": "kind"}, live=True)
    assert told.question is None


async def test_a_grader_that_was_not_offered_is_refused_and_counted(cluster, monkeypatch):
    counted: list[str] = []
    counter = RouterMetrics.rewards_refused
    monkeypatch.setattr(counter, "inc", lambda tags: counted.append(tags["reason"]))
    async with sampler(cluster, GRADERS) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *one: None))
        session = (await take(cluster))["session"]["id"]
        url = f"{cluster.url}/v1/sessions/{session}/finish"
        for ending, why in (
            ({"grader": "none"}, "shout, kind"),
            ({"grader": "shout", "reward": 1}, "leave reward out"),
            ({"grader": "shout", "failure": "no"}, "leave failure out"),
        ):
            answer = await cluster.http.post(url, json=ending)
            assert answer.status_code == 400
            assert "grader" in answer.json()["error"]["param"]
            assert why in answer.text
        assert counted == ["invalid"] * 3
        assert await end(cluster, session, failure="none of them") == 200
        with pytest.raises(RolloutFailed, match="agent_failed"):
            await sampling


async def test_a_session_of_no_run_has_no_graders(cluster):
    session = (await cluster.http.post(f"{cluster.url}/v1/sessions")).json()["id"]
    assert await end(cluster, session, grader="shout") == 400


async def test_a_grader_named_twice_is_the_same_end_and_another_is_not(cluster):
    async with sampler(cluster, GRADERS) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *one, **more: None))
        session = (await take(cluster))["session"]["id"]
        await chat(cluster, session, "hi")
        both = [await end(cluster, session, grader=name) for name in ("shout", "kind")]
        assert both[0] == 200
        assert both[1] in (404, 409)
        await sampling


async def test_an_agent_may_ask_for_a_task(cluster):
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *one: None))
        assert (await take(cluster, task_id="t2", wait_s=0.2))["session"] is None
        taken = await take(cluster, task_id="t1")
        assert taken["task"]["task_id"] == "t1"
        await chat(cluster, taken["session"]["id"], "hi")
        await end(cluster, taken["session"]["id"], reward=1)
        await sampling


def test_an_ending_without_a_grader_reads_as_before() -> None:
    ending = SessionEnding.model_validate(json.loads('{"reward": 1, "text": null}'))
    assert (ending.is_graded, ending.grader) == (True, None)
    assert not SessionEnding(failure="no").is_graded


def test_graders_that_nobody_can_name_are_refused() -> None:
    assert RunConfig.from_data(RUN_FILE | {"environment": "external"}, source="run.yaml").graders
    with pytest.raises(InvalidInput, match=r"graders.*Only agents outside name them"):
        RunConfig.from_data(RUN_FILE, source="run.yaml")
