"""Held-out sets: the estimator, what is asked, and that training never notices."""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.evaluation.evaluation import Evaluator, pass_at_k, pass_rates
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.rollout.rollout import Arrived, RolloutClient, RolloutRequest
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState, RunStatus
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import TrainReport
from services.protocol.trajectory import Trajectory
from tests.orchestrator.fakes import (
    Asked,
    World,
    metric_lines,
    numbers,
    run_to_end,
    world,
    write_tasks,
)

pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.mark.parametrize(("answers", "passed"), [(1, 0), (1, 1), (5, 2), (6, 6), (7, 1)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_answers_that_hold_a_pass(
    answers: int, passed: int
) -> None:
    results = [True] * passed + [False] * (answers - passed)
    for k in range(1, answers + 1):
        choices = [any(choice) for choice in itertools.combinations(results, k)]
        assert pass_at_k(answers, passed, k) == pytest.approx(sum(choices) / len(choices))
    for bad in (0, answers + 1):
        with pytest.raises(ValueError, match="not defined"):
            pass_at_k(answers, passed, bad)


def test_a_task_with_too_few_graded_answers_does_not_count_for_that_k() -> None:
    assert pass_rates([(6, 3), (2, 0), (0, 0)], samples=6) == {
        1: pytest.approx(0.25),
        2: pytest.approx(0.4),  # 1 - (3 over 2) / (6 over 2) = 0.8, and 0
        4: 1.0,
        6: 1.0,
    }
    assert pass_rates([(0, 0)], samples=3) == {}


def two_sets(cluster: World, evaluation: dict[str, Any], **changes: Any) -> RunConfig:
    other = write_tasks(cluster.task_file.with_name("hard.jsonl"), train=1, heldout=3)
    text = other.read_text().replace("heldout-", "hard-").replace("train-", "more-")
    other.write_text(text.replace("heldout ", "hard "))
    hard = {"file": str(other), "evaluation_set": "hard"}
    tasks = [hard, {"file": str(cluster.task_file)}]
    return cluster.run_config(task_file=None, tasks=tasks, evaluation=evaluation, **changes)


async def test_each_set_has_its_own_interval_samples_temperature_and_results(
    tmp_path: Path,
) -> None:
    hard = {"every": 1, "samples": 4, "temperature": 0.6}
    async with world(tmp_path) as cluster:
        config = two_sets(cluster, {"tasks": 2, "sets": {"hard": hard}}, steps=3)
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        assert status.summary is not None
        steps = Counter()
        for one in RunDirectory(status.run_dir).evaluations():
            steps[one.name, one.step] += 1
            assert (one.samples, one.tasks) == ((4, 2) if one.name == "hard" else (1, 2))
            assert set(one.pass_at) == ({1, 2, 4} if one.name == "hard" else {1})
            assert one.reward == pytest.approx(one.pass_rate)
            assert one.oldest_version >= one.step + 1, "never older than its train step"
        assert steps[("hard", 1)] + steps[("hard", 2)] >= 1
        assert {(name, step) for name, step in steps if step in (0, 3)} == {
            ("hard", 0),
            ("heldout", 0),
            ("hard", 3),
            ("heldout", 3),
        }
        hard_rates = [one.pass_rate for one in status.evaluations if one.name == "hard"]
        assert hard_rates != []
        assert status.heldout_pass_rate is not None
        assert [one.name for one in status.summary.evaluations_before] == ["hard", "heldout"]
        in_steps = [one["name"] for line in metric_lines(status) for one in line["evaluations"]]
        assert "hard" in in_steps
        asked = [
            asked
            for asked in cluster.router.asked
            if asked.body["messages"][0]["content"].startswith("hard")
        ]
        assert {(a.body["n"], a.body["temperature"]) for a in asked} == {(4, 0.6)}


async def test_a_set_that_was_not_measured_before_a_kill_is_measured_before_training(
    tmp_path: Path,
) -> None:
    async def never(asked: Asked, index: int) -> None:
        if asked.body["messages"][0]["content"].startswith("hard"):
            await asyncio.Event().wait()

    async with world(tmp_path) as cluster:
        config, runs = two_sets(cluster, {}, steps=1), Runs(cluster.config, lambda: cluster.peers)
        cluster.router.hold = never
        run_id = (await runs.start(RunRequest(config=config))).run_id
        async with asyncio.timeout(300):
            while not runs.get(run_id).status().evaluations:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await runs.close()
        cluster.router.hold = None
        status = await run_to_end(cluster, config, resume=run_id)
        measured = RunDirectory(status.run_dir).evaluations()
        assert [one.name for one in measured if one.step == 0] == ["heldout", "hard"]


async def trained_with(folder: Path, *, every: int) -> tuple[RunStatus, list[str]]:
    """A run whose evaluations beside training end only after its last train step."""
    async with world(folder) as cluster:
        over = asyncio.Event()
        train = cluster.trainer.train

        async def hold(asked: Asked, index: int) -> None:
            if asked.body["n"] == 1 and 0 < cluster.trainer.step < 5:
                await over.wait()

        async def train_on(batch: TrainBatch) -> TrainReport:
            report = await train(batch)
            if report.step == 5:
                over.set()
            return report

        cluster.router.hold, cluster.trainer.train = hold, train_on
        status = await run_to_end(cluster, cluster.run_config(evaluation={"every": every}))
        return status, [numbers(batch) for _, batch in cluster.trainer.batches]


async def test_training_neither_waits_for_an_evaluation_nor_differs_by_one(tmp_path: Path) -> None:
    alone, trained = await trained_with(tmp_path, every=0)
    beside, trained_beside = await trained_with(tmp_path, every=1)
    assert [status.step for status in (alone, beside)] == [5, 5]
    assert alone.heldout_problem is None
    assert "the last one is still running" in (beside.heldout_problem or "")
    assert trained == trained_beside


async def test_an_evaluation_that_breaks_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Evaluator.evaluate

    async def broken(self: Evaluator, *arguments: Any, step: int, **others: Any) -> Any:
        if step == 2:
            raise OSError("a full disk")
        return await evaluate(self, *arguments, step=step, **others)

    monkeypatch.setattr(Evaluator, "evaluate", broken)
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(evaluation={"every": 2}))
        assert (status.state, status.step) == (RunState.FINISHED, 5), status.detail
        assert status.heldout_problem == "heldout: OSError('a full disk')"
        assert 2 not in [one.step for one in RunDirectory(status.run_dir).evaluations()]


async def test_an_episode_without_any_answer_is_missing_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sample = RolloutClient.sample

    async def one_less(client: RolloutClient, request: RolloutRequest, arrived: Arrived) -> None:
        """As episodes do, of which one ended before its first call."""
        lost = request.n - 1 if "-evaluation-" in request.session else request.n

        def arrives(index: int, trajectory: Trajectory) -> None:
            if index != lost:
                arrived(index, trajectory)

        await sample(client, request, arrives)

    monkeypatch.setattr(RolloutClient, "sample", one_less)
    async with world(tmp_path) as cluster:
        plan = {"samples": 2, "temperature": 1.0}
        status = await run_to_end(cluster, cluster.run_config(steps=1, evaluation=plan))
    assert status.state is RunState.FINISHED
    (newest,) = status.evaluations
    assert (newest.tasks, newest.graded, newest.answers) == (5, 5, 5)
    assert newest.problem.startswith("5 of 10 answers to held-out tasks got no reward: task")
    assert newest.problem.endswith("an episode ended without an answer")


async def test_evaluations_go_last_at_a_full_router_and_take_no_older_version(
    tmp_path: Path,
) -> None:
    headers: list[dict[str, str]] = []
    async with world(tmp_path) as cluster:

        async def before(asked: Asked) -> None:
            headers.append({**asked.headers, "n": asked.body["n"]})

        cluster.router.before = before
        await run_to_end(cluster, cluster.run_config(steps=1, evaluation={"tasks": 1}))
    evaluations = [one for one in headers if one["n"] == 1]
    assert [one["x-min-policy-version"] for one in evaluations] == ["1", "2"]
    assert {one["x-priority"] for one in evaluations} == {"100"}
    assert all("x-priority" not in one for one in headers if one["n"] > 1)


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"samples": 4}, "4 greedy answers are the same one"),
        ({"sets": {"heldout": {"samples": 2}}}, "sets.heldout: 2 greedy answers"),
        ({"sets": {"aime": {"every": 2}}}, "No source has this evaluation_set, only heldout"),
    ],
)
def test_what_an_evaluation_cannot_be_is_refused(evaluation: dict[str, Any], said: str) -> None:
    run = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}
    with pytest.raises(InvalidInput, match=said):
        RunConfig.from_data(run | {"task_file": "t", "evaluation": evaluation}, source="run")


async def test_a_resumed_run_keeps_its_evaluations(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        first = await run_to_end(cluster, cluster.run_config(steps=2))
        second = await run_to_end(cluster, cluster.run_config(steps=3), resume=first.run_id)
        lines = (Path(second.run_dir) / "evaluations.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [0, 2, 3]
