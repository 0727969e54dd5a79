"""The real orchestrator under random schedules, times and faults, in virtual time.

`benchmarks/schedules/faults.py` plays thousands of them; here are a few, and the proof that
what watches them sees what is wrong.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from services.ledger.sample_group import Prompt
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import RolloutRequest
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from tests.batches import GroupBatch
from tests.orchestrator.random_schedule import RandomSchedule, draw, play
from tests.orchestrator.simulated_cluster import Weather, answer
from tests.orchestrator.virtual_clock import run_virtually
from tests.orchestrator.witness import Witness

pytestmark = pytest.mark.usefixtures("no_drawing")


def folder_of(tmp_path: Path, seed: object) -> Path:
    folder = tmp_path / str(seed)
    folder.mkdir()
    return folder


@pytest.mark.parametrize("block", range(3))
def test_whatever_the_schedule_and_whatever_breaks_nothing_is_lost(
    tmp_path: Path, block: int
) -> None:
    kills = balanced = 0
    for seed in range(8 * block, 8 * block + 8):
        life, status = play(draw(seed), folder_of(tmp_path, seed))
        assert life.witness.problems == [], f"schedule {seed}: {draw(seed)}"
        assert status.state is RunState.FINISHED
        kills += life.kills
        balanced += life.witness.balanced
    assert kills > 0, "no orchestrator was killed in this block"
    assert balanced > 300, "the balance was looked at after every transaction"


def test_a_batch_whose_places_are_filled_again_and_again_is_no_stall(tmp_path: Path) -> None:
    life, status = play(draw(554), folder_of(tmp_path, 554))
    assert life.witness.problems == []
    assert status.state is RunState.FINISHED


def test_scores_that_come_slowly_one_after_another_are_no_stall(tmp_path: Path) -> None:
    plan = RandomSchedule(
        seed=0,
        schedule={"preset": "sync"},
        run={"steps": 2, "batch_groups": 4, "group_size": 4, "rollout_timeout_s": 60.0},
        orchestrator={
            "rollout_retries": 0,
            "score_batch": 1,
            "score_concurrency": 1,
            "score_timeout_s": 300.0,
            "replicas_timeout_s": 1.0,
        },
        replicas=1,
        weather=Weather(score_s=50.0),  # 16 of a batch take twice as long as a stall
    )
    life, status = play(plan, folder_of(tmp_path, 0))
    assert status.state is RunState.FINISHED, status.detail
    assert life.ended_at > 2 * (60.0 + 300.0 + 1.0)


def test_nothing_hangs_while_overdue_groups_wait_for_a_replica(tmp_path: Path) -> None:
    life, status = play(draw(2930), folder_of(tmp_path, 2930))
    assert life.witness.problems == []
    assert status.ledger.in_flight == 0


def test_the_same_schedule_in_the_same_weather_is_the_same_to_the_last_event(
    tmp_path: Path,
) -> None:
    plan = draw(3)
    plan = replace(plan, weather=replace(plan.weather, killed_s=20.0))
    one, two = (play(plan, folder_of(tmp_path, name))[0] for name in "ab")
    assert one.kills > 0
    assert one.trainer.weights == two.trainer.weights
    assert one.ended_at == two.ended_at
    assert one.witness.balanced == two.witness.balanced


def batch_of(group_ids: list[int], *, version: int, step: int = 1) -> GroupBatch:
    request = RolloutRequest(
        session="s",
        messages=[],
        n=1,
        temperature=1.0,
        max_tokens=9,
        seed=0,
        limits=RolloutLimits(total_s=1.0, progress_s=600.0),
    )
    one = ScoredTrajectory(
        trajectory=answer(request, 0, [(version, "replica-0")], good=1.0), reward=1.0
    )
    groups = tuple(TrainGroup(group_id=group, trajectories=(one, one)) for group in group_ids)
    return GroupBatch(run_id="r", step=step, groups=groups)


@pytest.fixture
def witness() -> Witness:
    return Witness(
        RunConfig.model_validate(
            {
                "name": "x",
                "task_file": "t",
                "model": "m",
                "steps": 9,
                "batch_groups": 1,
                "group_size": 2,
                "schedule": {"preset": "one_step_off"},
            }
        )
    )


def test_the_witness_sees_a_trajectory_above_the_bound(witness: Witness) -> None:
    witness.batch(batch_of([1], version=3), 4)
    assert witness.problems == []
    witness.batch(batch_of([1], version=3), 5)
    assert witness.problems == ["group 1 trained at staleness 2"]


def test_the_witness_sees_a_newer_group_trained_before_an_older_one(witness: Witness) -> None:
    for group_id in (1, 2, 3):
        witness.rolled_out(group_id, 4)
    witness.batch(batch_of([1], version=4), 4)
    witness.batch_closed(1, [1], [])
    assert witness.problems == []
    witness.batch(batch_of([3], version=4), 4)
    witness.batch_closed(2, [3], [])
    assert witness.problems == ["step 2 took [3] before group 2, which was ready"]


def test_the_witness_lets_a_group_at_the_bound_go_first(witness: Witness) -> None:
    witness.rolled_out(1, 4)
    witness.rolled_out(2, 3)
    witness.batch(batch_of([2], version=3), 4)
    witness.batch_closed(1, [2], [])
    assert witness.problems == []


def test_the_witness_sees_a_group_that_closes_twice(witness: Witness) -> None:
    witness.closed(1, "failed")
    witness.closed(1, "trained", 1)
    assert witness.problems == ["group 1 closed twice: ('failed', 0), trained"]


def test_the_witness_compares_ledger_and_weights_at_the_end(
    witness: Witness, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = witness.ledger(path)
    prompts = [Prompt(position=place, epoch=0, task_id="t") for place in (0, 2, 3)]
    for group in ledger.admit(prompts, version=1):
        ledger.rolled_out(group.group_id, oldest_version=1, tokens=5)
    ledger.close_batch(1, train=[1], filtered=[])
    ledger.close()
    twice = [batch_of([2], version=1), batch_of([2], version=1, step=2)]
    witness.judge_end(path, twice, 16)
    assert witness.problems == [
        "groups [2] are in the weights more than once",
        "the ledger and the weights disagree about what was trained",
        "a prompt was skipped or used twice",
        "groups [2, 3] never closed",
        "some groups closed unseen",
        "16 tokens were delivered, the ledger knows 15",
    ]


def test_the_virtual_clock_jumps_and_keeps_the_order_of_events() -> None:
    order: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        began = time.monotonic()
        await asyncio.sleep(seconds)
        order.append((name, time.monotonic() - began))

    async def all_three() -> None:
        await asyncio.gather(sleeper("day", 86400.0), sleeper("hour", 3600.0), sleeper("now", 0.0))

    run_virtually(all_three)
    assert order == [("now", 0.0), ("hour", 3600.0), ("day", 86400.0)]


def test_in_virtual_time_nothing_hangs() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        run_virtually(waits_for_nothing, limit_s=1e6)
