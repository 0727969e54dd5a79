"""From a grader's named rewards to advantages, through a whole run; other names are never 0."""

import json
import math
from pathlib import Path
from typing import cast

import pytest

from services.ledger.sample_group import LedgerGroup
from services.orchestrator.core.results import Graded, GroupResult
from services.orchestrator.rollout.environment_host import _outcome
from services.orchestrator.rollout.scoring import REWARD_NAMES, weighed
from services.protocol.reward.reward_service import Score, Verdict
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.run.orchestrator import RunState
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.step_plan import plan_step
from tests.orchestrator.fakes import metric_lines, run_to_end, trajectories, world

WEIGHTS = {"correct": 1.0, "format": 0.2}
GDPO = {"advantage": "gdpo", "rewards": WEIGHTS}


def named(completion: str) -> dict[str, float]:
    right = completion.startswith("good")
    return {"format": 0.5 - right, "correct": float(right)}


async def test_named_rewards_reach_the_trainer_each_by_itself(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.reward.named = named
        config = cluster.run_config(steps=2, algorithm=GDPO)
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        batches = [batch for _, batch in cluster.trainer.batches]
    for batch in batches:
        for one in trajectories(batch):
            right = one.named[0]
            assert one.named == (right, 0.5 - right)
            assert one.reward == pytest.approx(right + 0.2 * (0.5 - right))
        limits = PassLimits(world_size=1, max_tokens=4096)
        algorithm = config.algorithm
        plan = plan_step(batch.built, algorithm, seed="1", limits=limits, vocabulary=1 << 20)
        # Both rewards of a group have opposite signs and the same spread: 1 - 0.2 remains.
        assert math.fsum(plan.advantages) == pytest.approx(0.0, abs=1e-9)
        assert math.fsum(a * a for a in plan.advantages) == pytest.approx(len(plan.chosen) - 1)
        signs = [one.named[0] for one in trajectories(batch)]
        assert [a > 0 for a in plan.advantages] == [bool(one) for one in signs]
    folder = Path(status.run_dir)
    for line in metric_lines(status):
        right = line["rewards"]["correct"]
        assert line["rewards"]["format"] == pytest.approx(0.5 - right)
        assert line["reward"] == pytest.approx(right + 0.2 * (0.5 - right))
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    assert all(set(one) == set(WEIGHTS) for line in groups for one in line["named_rewards"])


async def test_a_grader_with_other_names_fails_groups_by_that_name(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.reward.named = lambda completion: {"correct": 1.0, "style": 1.0}
        config = cluster.run_config(steps=1, algorithm={"rewards": WEIGHTS})
        status = await run_to_end(cluster, config)
        assert not cluster.trainer.batches
    assert status.state is RunState.FAILED
    assert set(status.failures) == {REWARD_NAMES}
    assert "['correct', 'style']" in status.failure_example


def score(**fields: object) -> Score:
    return Score(**({"verdict": Verdict.ACCEPTED, "reward": 1.0, "job_id": "a"} | fields))


def test_an_answers_reward_is_the_weighted_sum() -> None:
    assert weighed(score(rewards={"correct": 1.0, "format": 0.5}), WEIGHTS).reward == 1.1
    kept = score(rewards={"style": 3.0})
    assert weighed(kept, {}) is kept


def test_weights_that_add_up_to_one_make_a_passed_answer_of_full_rewards() -> None:
    weights = {"correct": 0.7, "format": 0.2, "style": 0.1}
    assert weighed(score(rewards=dict.fromkeys(weights, 1.0)), weights).reward == 1.0


def test_rewards_that_are_too_large_have_no_finite_sum() -> None:
    assert reward_sum([1e308, 1e308]) == math.inf
    assert math.isnan(reward_sum([math.inf, -math.inf]))


@pytest.mark.parametrize(
    "rewards", [{}, {"correct": 1.0}, {"correct": 1.0, "format": 1.0, "style": 1.0}]
)
def test_missing_and_other_names_leave_the_answer_without_a_reward(
    rewards: dict[str, float],
) -> None:
    found = weighed(score(rewards=rewards), WEIGHTS)
    assert (found.verdict, found.reward, found.cause) == ("infra_error", None, REWARD_NAMES)
    assert found.job_id == "a"


def test_an_answer_cannot_lose_its_names_by_making_its_grader_fail() -> None:
    found = weighed(score(reward=-1.0, refused=True), WEIGHTS)
    assert found.rewards == {"correct": -1.0, "format": -1.0}
    assert found.reward == pytest.approx(-1.2)


def test_a_group_that_differs_in_one_of_its_rewards_is_learned_from() -> None:
    task = Task.model_validate(
        {"task_id": "t", "messages": [{"role": "user", "content": "?"}], "split": "train"}
    )
    answer = Trajectory(
        prompt_token_ids=(1,),
        response_token_ids=(),
        behaviour_logprobs=(),
        loss_mask=(),
        spans=(),
        finish_reason="stop",
        text="",
    )

    def result(*named: tuple[float, ...]) -> GroupResult:
        graded = tuple(
            Graded(trajectory=answer, score=score(rewards={"a": one[0]}), named=one)
            for one in named
        )
        group = cast(LedgerGroup, None)
        times = {"rollout_s": 0.0, "score_s": 0.0}
        return GroupResult(group=group, task=task, graded=graded, ungraded=(), **times)

    different = result((1.0, 0.0), (0.0, 5.0))
    assert different.trainable
    assert not result((1.0, 0.0), (1.0, 0.0)).trainable
    again = GroupResult.unpacked(different.packed(), group=different.group, task=task)
    assert again == different, "the ledger keeps names and values over a restart"


def test_an_environment_can_return_named_rewards() -> None:
    assert _outcome({"correct": True, "format": 0.5}) == {
        "rewards": {"correct": 1.0, "format": 0.5}
    }
    for wrong in ({}, {"A name": 1.0}, {"a": float("nan")}, {"a": "x"}, {"a": None}):
        assert _outcome(wrong)["reason"] == "environment_result"
