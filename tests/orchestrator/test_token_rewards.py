"""Rewards of single tokens: from an environment's list to the advantages of its tokens."""

from pathlib import Path

import pytest

from services.orchestrator.rollout.call_rewards import misfit, returns
from services.orchestrator.rollout.environment_host import _outcome
from services.orchestrator.rollout.session_client import FinishedEpisode
from services.protocol.run.orchestrator import RunState
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.collate import collate
from services.trainer.batch.step_plan import plan_step
from tests.orchestrator.fakes import run_to_end, trajectories, world

TURNS = [(3, 1), (8, 2)]
"""Three tokens, two that a tool wrote, and three again."""


def played(mask: tuple[int, ...] = (1, 1, 1, 0, 0, 1, 1, 1)) -> FinishedEpisode:
    count = len(mask)
    one = Trajectory(
        prompt_token_ids=(1,),
        response_token_ids=(2,) * count,
        behaviour_logprobs=(-0.5,) * count,
        loss_mask=mask,
        spans=(PolicySpan(version=1, start=0, end=count, replica_id="replica"),),
        finish_reason="stop",
        text="",
    )
    return FinishedEpisode(trajectories=[one], turns=[TURNS], calls=2, unrecorded_calls=0)


def test_a_token_gets_the_rewards_from_it_on_and_a_turn_all_of_its_own() -> None:
    outcome = {"reward": 3.25, "of_calls": [[0.25, 0.0, 1.0], 2.0]}
    assert returns(outcome, TURNS, by_token=True) == ((1, 3.25), (2, 3.0), (3, 3.0), (8, 2.0))
    assert returns(outcome, TURNS, by_token=False) == ((3, 3.25), (8, 2.0))
    # The tool's tokens lie before the first token of the second call, and belong to it.
    outcome = {"reward": 0.75, "of_calls": [0.0, [0.5, 0.0, 0.25]]}
    assert returns(outcome, TURNS, by_token=True) == ((3, 0.75), (6, 0.75), (7, 0.25), (8, 0.25))


def test_rewards_that_an_agent_posts_to_a_call_and_to_its_tokens_add_up() -> None:
    # 0.5 before the first call, 1 with it, 0.25 to its second token, and 2 at the end.
    outcome = {"reward": 3.75, "turns": {0: 0.5, 1: 1.0}, "tokens": {1: [0.0, 0.25, 0.0]}}
    assert returns(outcome, TURNS, by_token=True) == ((1, 3.25), (2, 3.25), (3, 3.0), (8, 2.0))
    assert returns(outcome, TURNS, by_token=False) == ((3, 3.25), (8, 2.0))


def test_equal_rewards_to_come_are_equal_numbers() -> None:
    first = {"reward": 1.6, "of_calls": [[0.1, 0.2, 0.3], 1.0]}
    second = {"reward": 1.7, "of_calls": [[0.7, 0.0, 0.0], 1.0]}
    ends = [returns(one, TURNS, by_token=True)[-1] for one in (first, second)]
    assert ends == [(8, 1.0), (8, 1.0)]


def test_a_list_that_is_not_of_a_calls_tokens_is_named() -> None:
    def problem(*of_calls: object) -> str:
        return misfit({"of_calls": list(of_calls)}, played())

    assert problem([1.0, 0.0, 0.0], 1.0) == problem(1.0, [0.0, 0.0, 1.0]) == ""
    assert problem(0.5, [1.0]) == "it has rewards of 1 tokens of call 2, which has 3"
    assert problem([1.0] * 4, 0.5) == "it has rewards of 4 tokens of call 1, which has 3"
    assert problem([1.0] * 3) == "it has rewards of 1 calls and made 2"
    assert misfit({"tokens": {2: [1.0]}}, played()).endswith("of call 2, which has 3")
    # Another trajectory has the mask of the first call, and there its list is checked.
    assert misfit({"of_calls": [[1.0], 1.0]}, played((0, 0, 0, 0, 0, 1, 1, 1))) == ""


@pytest.mark.parametrize("wrong", [[[]], [[float("nan")]], [["1"]], [[[1.0]]], [1.0, None]])
def test_what_is_no_list_of_finite_numbers_is_no_reward(wrong: list[object]) -> None:
    assert _outcome(wrong)["reason"] == "environment_result"


def test_the_reward_of_an_episode_is_the_sum_of_all() -> None:
    assert _outcome([[0.7, 0.2], 0.1]) == {"reward": 1.0, "of_calls": [[0.7, 0.2], 0.1]}


ENVIRONMENT = """
async def rollout(client, task):
    reply = await client.chat.completions.create(model='', messages=task.chat, logprobs=True)
    (choice,) = reply.choices
    rewards = [0.0 for _ in choice.logprobs.content]
    good = choice.message.content == 'good'
    rewards[0] = 0.5
    rewards[-2:] = [-0.5, 1.0] if good else [0.5, 0.0]
    return [rewards]
"""


async def test_a_run_learns_from_rewards_of_tokens_whose_sums_are_all_equal(tmp_path: Path) -> None:
    environment = tmp_path / "tokens.py"
    environment.write_text(ENVIRONMENT)
    async with world(tmp_path, environments=True) as cluster:
        config = cluster.run_config(
            environment=f"{environment}:rollout", steps=2, algorithm={"credit": "token"}
        )
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        batches = [batch for _, batch in cluster.trainer.batches]
    for batch in batches:
        every = trajectories(batch)
        assert {one.reward for one in every} == {1.0}
        good = [one.returns[-1][1] for one in every]
        assert [one.returns for one in every] == [((1, 1.0), (2, 0.5), (3, g)) for g in good]
        limits = PassLimits(world_size=1, max_tokens=4096)
        plan = plan_step(batch.built, config.algorithm, seed="1", limits=limits, vocabulary=1 << 20)
        assert len(plan.chosen) == len(every), "the last token of each group differs"
        found = {}
        for rows in (rows for several in plan.part(0).micro_batches() for rows in several):
            micro = collate(rows, 1)
            for row, place in enumerate(rows.place.tolist()):
                found[place] = micro.advantage[micro.row == row].tolist()
        for place, last in enumerate(good):
            group = good[4 * (place // 4) :][:4]
            mean = sum(group) / 4
            deviation = (sum((one - mean) ** 2 for one in group) / 3) ** 0.5
            assert found[place] == pytest.approx([0.0, 0.0, (last - mean) / deviation], abs=1e-6)


async def test_an_episode_whose_list_has_another_length_fails_by_name(tmp_path: Path) -> None:
    environment = tmp_path / "tokens.py"
    environment.write_text(ENVIRONMENT.replace("[rewards]", "[rewards[1:]]"))
    async with world(tmp_path, environments=True, failures_in_row=1) as cluster:
        config = cluster.run_config(environment=f"{environment}:rollout", steps=1)
        status = await run_to_end(cluster, config)
    assert status.state is RunState.FAILED
    assert set(status.failures) == {"environment_result"}
    assert "rewards of 2 tokens of call 1, which has 3" in status.failure_example
