"""What a run tells about what went wrong, whatever came of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.ledger.sample_group import LedgerGroup, Prompt
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.progress import Progress
from services.orchestrator.core.results import Graded, GroupResult
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.loop.no_signal_streak import NoSignalStreak
from services.orchestrator.loop.recovery import RunFailed
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.orchestrator.tasks.task_table import load_tasks
from services.page.reading.run_folder import RunFolder
from services.protocol.errors import NotReady
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.protocol.run.orchestrator import LedgerCounts, RunRequest, RunState, RunStatus
from services.protocol.trajectory import PolicySpan, Trajectory
from tests.orchestrator.fakes import Asked, World, evaluation, run_to_end, world, write_tasks

pytestmark = pytest.mark.usefixtures("no_drawing")

TOO_LONG = "the prompt has 9000 tokens, the model takes 4096"


def refuse(cluster: World, which) -> None:
    """Let the router answer these requests with a client error in OpenAI's shape."""

    async def before(asked: Asked) -> web.Response | None:
        if not which(asked):
            return None
        error = {"message": TOO_LONG, "type": "invalid_request_error", "param": None, "code": 400}
        return web.json_response({"error": error}, status=400)

    cluster.router.before = before


def heldout(asked: Asked) -> bool:
    return asked.body["n"] == 1


def summary(status: RunStatus) -> dict[str, Any]:
    return json.loads((Path(status.run_dir) / "summary.json").read_text())


def shown(status: RunStatus) -> list[dict[str, Any]]:
    return RunDirectory(status.run_dir).trajectories.lines(1000)


# Held-out tasks


async def test_a_run_whose_held_out_tasks_are_all_refused_trains_and_says_why(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        refuse(cluster, heldout)
        status = await run_to_end(cluster, cluster.run_config(steps=2))
    assert (status.state, status.step) == (RunState.FINISHED, 2), status.detail
    written = summary(status)
    assert written["heldout_pass_rate_before"] is None
    assert (written["heldout_pass_rate_after"], written["heldout_step"]) == (None, None)
    problem = "5 of 5 answers to held-out tasks got no reward: task heldout-"
    for said in (status.heldout_problem, written["heldout_problem"], status.detail):
        assert problem in said
        assert f"http_400: {TOO_LONG}" in said
    assert status.heldout_problem.startswith("after training: ")
    assert "not measured after training" in status.detail


async def test_held_out_tasks_missing_from_a_pass_rate_are_counted_and_explained(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        cluster.reward.ungraded = lambda job: "/evaluation-heldout-0-3/" in job.job_id
        refuse(cluster, lambda asked: asked.session.endswith("evaluation-heldout-0-1"))
        status = await run_to_end(cluster, cluster.run_config(steps=1))
    assert status.heldout_pass_rate is not None
    problem = "2 of 5 answers to held-out tasks got no reward: task heldout-1: http_400"
    assert problem in status.heldout_problem


async def test_the_last_measured_pass_rate_is_kept_when_the_last_evaluation_fails(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        refuse(cluster, lambda asked: heldout(asked) and cluster.trainer.step == 5)
        status = await run_to_end(cluster, cluster.run_config(evaluation={"every": 2}))
    written = summary(status)
    assert written["train_steps"] == 5
    assert written["heldout_step"] == 4
    assert written["heldout_pass_rate_after"] == status.heldout_pass_rate
    assert written["heldout_pass_rate_after"] is not None


async def test_a_stopped_run_has_the_pass_rate_measured_last_and_its_step(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        reached = asyncio.Event()
        train = cluster.trainer.train

        async def train_to_step_3(batch):
            if batch.step == 4:
                reached.set()
                await asyncio.sleep(0.05)
            return await train(batch)

        cluster.trainer.train = train_to_step_3
        runs = Runs(cluster.config, lambda: cluster.peers)
        config = cluster.run_config(steps=50, evaluation={"every": 2})
        run_id = (await runs.start(RunRequest(config=config))).run_id
        async with asyncio.timeout(300):
            await reached.wait()
            status = await runs.stop(run_id)
    assert summary(status)["heldout_step"] in (2, 4)
    assert summary(status)["heldout_pass_rate_after"] is not None


# Nothing to learn


@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_run_of_no_reward_at_all_fails_and_says_what_the_verdicts_were(
    tmp_path: Path, dynamic: bool
) -> None:
    async with world(tmp_path, no_signal_batches=3) as cluster:
        cluster.router.answers = lambda asked, index, version: False
        real_score = cluster.reward.score

        async def score(jobs: list[ScoreJob]) -> list[Score]:
            detail = {"verdict": Verdict.RUNTIME_ERROR, "detail": "NameError: no f"}
            return [Score(**(vars(one) | detail)) for one in await real_score(jobs)]

        cluster.reward.score = score
        config = cluster.run_config(schedule={"dynamic_sampling": dynamic})
        status = await run_to_end(cluster, config)
    assert (status.state, status.step) == (RunState.FAILED, 0)
    assert "the last 48 answers, in 12 sample groups, were all 0" in status.detail
    assert "(runtime_error 48; for example NameError: no f)" in status.detail
    assert "entry_point" in status.detail
    assert {line["answer"] for line in shown(status)} == {"bad"}
    assert {line["step"] for line in shown(status)} == {0}
    assert len(shown(status)) >= cluster.config.sample_trajectories


@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_run_of_tasks_that_are_solved_already_finishes_and_says_so(
    tmp_path: Path, dynamic: bool
) -> None:
    async with world(tmp_path, no_signal_batches=3) as cluster:
        cluster.router.answers = lambda asked, index, version: True
        config = cluster.run_config(schedule={"dynamic_sampling": dynamic})
        status = await run_to_end(cluster, config)
    assert (status.state, status.step) == (RunState.FINISHED, 0)
    assert "solved already" in status.detail
    assert {line["answer"] for line in shown(status)} == {"good"}
    greedy = [asked for asked in cluster.router.asked if heldout(asked)]
    assert len(greedy) == 5, "the weights that were evaluated first are still the same"


async def test_a_run_of_tasks_either_solved_or_out_of_reach_finishes_with_the_verdicts(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, no_signal_batches=3) as cluster:
        cluster.router.answers = lambda asked, index, version: asked.body["seed"] % 2 == 0
        status = await run_to_end(cluster, cluster.run_config())
    assert status.state is RunState.FINISHED
    assert "wrong_answer" in status.detail
    assert "accepted" in status.detail


@pytest.mark.parametrize("solved", [False, True])
async def test_groups_of_one_answer_teach_where_their_rewards_differ_from_others(
    tmp_path: Path, solved: bool
) -> None:
    async with world(tmp_path, no_signal_batches=3) as cluster:
        cluster.router.answers = lambda asked, index, version: solved or asked.body["seed"] % 2 == 0
        config = cluster.run_config(
            steps=8, group_size=1, algorithm={"advantage": "reinforce_plus_plus"}
        )
        status = await run_to_end(cluster, config)
    assert status.state is RunState.FINISHED
    assert ("solved already" in status.detail) == solved
    assert (status.step == 8) == (not solved)


def test_a_group_that_teaches_begins_the_row_again(tmp_path: Path) -> None:
    task = load_tasks(write_tasks(tmp_path / "tasks.jsonl"))[0]
    row = NoSignalStreak(
        OrchestratorConfig(no_signal_batches=2, sample_trajectories=1), batch_groups=2
    )
    seen = []
    for reward in (0.0, 0.0, None, 1.0, 1.0, 1.0, 1.0):
        assert not row.full
        if reward is None:
            row.clear()
            continue
        row.add(_result(task, reward))
        seen.append(row.shows_newest)
    assert row.full
    assert seen == [False, True, False, True, False, True]
    assert "8 answers, in 4 sample groups" in row.ending()
    row.clear()
    row.add(_result(task, 0.0))
    with pytest.raises(RunFailed, match=r"wrong_answer 2\)"):
        row.ending()


def test_rewards_that_were_there_before_they_were_all_0_tell_of_a_collapse(tmp_path: Path) -> None:
    task = load_tasks(write_tasks(tmp_path / "tasks.jsonl"))[0]
    row = NoSignalStreak(OrchestratorConfig(), batch_groups=2)
    row.add(_result(task, 0.0))
    with pytest.raises(RunFailed, match="Check the tasks' graders"):
        row.ending()
    row.clear()
    row.add(_result(task, 0.0))
    with pytest.raises(RunFailed, match=r"of 1 sample groups before them differed, .* collapsed"):
        row.ending()


def _result(task, reward: float) -> GroupResult:
    score = Score(
        job_id="j",
        verdict=Verdict.ACCEPTED if reward else Verdict.WRONG_ANSWER,
        reward=reward,
        passed=0,
        total=1,
        seconds=0.0,
        cpu_s=0.0,
        detail="",
        cached=False,
    )
    trajectory = Trajectory(
        prompt_token_ids=(1,),
        response_token_ids=(2,),
        behaviour_logprobs=(-1.0,),
        loss_mask=(1,),
        spans=(PolicySpan(version=1, start=0, end=1, replica_id="a"),),
        finish_reason="stop",
        text="x",
    )
    prompt = Prompt(position=0, epoch=0, task_id=task.task_id)
    return GroupResult(
        group=LedgerGroup(group_id=1, prompt=prompt, attempt=1),
        task=task,
        graded=(Graded(trajectory=trajectory, score=score),) * 2,
        ungraded=(),
        rollout_s=0.0,
        score_s=0.0,
    )


# Failed groups


def some(asked: Asked) -> bool:
    return asked.body["messages"][0]["content"] in ("train 3", "train 4")


async def test_failed_groups_of_a_good_run_are_counted_by_reason_with_an_example(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        refuse(cluster, some)
        first = await run_to_end(cluster, cluster.run_config(steps=8))
        again = await run_to_end(cluster, cluster.run_config(steps=16), resume=first.run_id)
    assert first.state is RunState.FINISHED, first.detail
    assert first.failures == {"http_400": first.ledger.failed}
    assert first.ledger.failed >= 2
    assert first.failure_example in [
        f"task train-{number}: http_400: {TOO_LONG}" for number in (3, 4)
    ]
    for status in (first, again):
        assert status.failures == status.summary.failures == {"http_400": status.ledger.failed}
        assert status.failure_example == status.summary.failure_example == first.failure_example
    assert again.ledger.failed > first.ledger.failed, "counted over the whole run"
    written = summary(again)
    assert written["failures"] == again.failures
    assert written["failure_example"] == again.failure_example


async def test_a_group_that_could_not_be_graded_says_why(tmp_path: Path) -> None:
    class Away:
        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            raise NotReady("reward_service is not up")

    async with world(tmp_path, score_timeout_s=0.02, failures_in_row=1) as cluster:
        cluster.reward = Away()
        status = await run_to_end(cluster, cluster.run_config())
    assert status.state is RunState.FAILED
    assert set(status.failures) == {"infra_error"}
    assert "reward_service is not up" in status.detail
    assert "reward_service is not up" in status.failure_example
    assert "infra_error" in status.heldout_problem


async def test_a_run_that_gives_up_quotes_the_refusal_not_its_json(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        refuse(cluster, lambda asked: not heldout(asked))
        status = await run_to_end(cluster, cluster.run_config())
    assert status.state is RunState.FAILED
    assert status.detail == f"16 sample groups failed in a row, last: http_400: {TOO_LONG}"


# Unexpected errors


async def test_an_unexpected_error_is_said_and_its_traceback_is_in_a_named_file(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:

        async def start_run(start) -> None:
            raise KeyError("weights")

        cluster.trainer.start_run = start_run
        status = await run_to_end(cluster, cluster.run_config())
    path = Path(status.run_dir) / "error.txt"
    assert status.state is RunState.FAILED
    assert status.detail == f"unexpected KeyError: 'weights'; its traceback is in {path}"
    assert "Traceback" in path.read_text()


async def test_a_run_that_goes_on_has_neither_the_error_nor_the_summary_of_its_last_end(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        start_run, config, left = cluster.trainer.start_run, cluster.run_config(steps=1), []

        async def broken(start) -> None:
            raise KeyError("weights")

        cluster.trainer.start_run = broken
        failed = await run_to_end(cluster, config)
        folder = Path(failed.run_dir)
        assert RunFolder.open(folder).overview()["state"] == "failed"

        async def repaired(start):
            left.extend(one for one in ("error.txt", "summary.json") if (folder / one).exists())
            return await start_run(start)

        cluster.trainer.start_run = repaired
        status = await run_to_end(cluster, config, resume=failed.run_id)
        assert (status.state, left) == (RunState.FINISHED, [])
        assert RunFolder.open(folder).overview()["state"] == "finished"


async def test_an_unexpected_error_of_one_task_of_many_is_said_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_error", broken)
    async with world(tmp_path) as cluster:

        def submit(job: ScoreJob) -> None:
            raise TypeError("a defect")

        runs = Runs(cluster.config, lambda: cluster.peers)
        run_id = (await runs.start(RunRequest(config=cluster.run_config()))).run_id
        runs.get(run_id)._scorer.submit = submit
        async with asyncio.timeout(300):
            status = await runs.ended(run_id)
    assert status.state is RunState.FAILED
    assert status.detail == "unexpected TypeError: a defect"


# While it goes on


def test_rates_and_seconds_of_a_status_are_rounded_for_people() -> None:
    progress = Progress(run_id="a", run_dir="/a", steps=3)
    progress.reward, progress.tokens_per_second = 1 / 3, 1234.5678
    progress.evaluations["heldout"] = evaluation(pass_at={1: 2 / 3})
    progress.elapsed_before_s = 1000 / 3
    status = progress.status(ledger=LedgerCounts(), live_replicas=1)
    assert (status.reward, status.heldout_pass_rate) == (0.3333, 0.6667)
    assert status.tokens_per_second == 1234.6
    assert status.elapsed_s == round(status.elapsed_s, 1) >= 333.3


async def test_a_missing_trainer_is_named_while_it_is_waited_for_and_at_the_deadline(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, trainer_timeout_s=1.0, backoff_max_s=0.01) as cluster:
        asked = asyncio.Event()
        details: list[str] = []

        async def state() -> None:
            if started := runs.list():  # before, the run is looked at before it starts
                details.append(started[0].detail)
            if len(details) == 2:
                asked.set()
            raise NotReady("trainer is not up: Application 'trainer' does not exist.")

        cluster.trainer.state = state
        runs = Runs(cluster.config, lambda: cluster.peers)
        run_id = (await runs.start(RunRequest(config=cluster.run_config()))).run_id
        async with asyncio.timeout(300):
            await asked.wait()
            status = await runs.ended(run_id)
    assert details[0] == "waiting for the trainer"
    assert details[1].startswith("waiting for the trainer: trainer is not up")
    assert status.state is RunState.FAILED
    assert "no progress for 1 s: trainer is not up: Application 'trainer' does not" in status.detail
    assert "serve status" in status.detail


async def test_a_missing_weight_bus_is_named_at_the_deadline(tmp_path: Path) -> None:
    async with world(tmp_path, replicas_timeout_s=0.1) as cluster:

        async def away(*_: object) -> None:
            raise NotReady("weight_bus is not up")

        cluster.bus.bound_lag = away
        cluster.bus.watch = away
        status = await run_to_end(cluster, cluster.run_config())
    assert status.state is RunState.FAILED
    assert "the weight bus did not answer in 0.1 s: weight_bus is not up" in status.detail


async def test_a_run_that_cannot_be_resumed_keeps_what_it_knew(tmp_path: Path) -> None:
    async with world(tmp_path, trainer_timeout_s=0.05) as cluster:
        first = await run_to_end(cluster, cluster.run_config(steps=2))
        cluster.trainer.ready = False
        status = await run_to_end(cluster, cluster.run_config(steps=4), resume=first.run_id)
    assert status.state is RunState.FAILED
    assert status.tokens_sampled == first.tokens_sampled > 0
    assert status.tokens_evaluated == first.tokens_evaluated > 0
    before = first.summary.heldout_pass_rate_before
    assert summary(status)["heldout_pass_rate_before"] == before


async def test_what_a_batch_waits_for_is_said_in_plain_words(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        held = asyncio.Event()

        async def hold(asked: Asked, index: int) -> None:
            if not heldout(asked):
                await held.wait()

        cluster.router.hold = hold
        runs = Runs(cluster.config, lambda: cluster.peers)
        run_id = (await runs.start(RunRequest(config=cluster.run_config(steps=1)))).run_id
        run = runs.get(run_id)
        async with asyncio.timeout(300):
            while "sampled" not in run.status().detail:
                await run._context.changes.after(run._context.changes.count, 0.01)
        assert run.status().detail == (
            "4 sample groups are being sampled and scored; the next train step needs all of them"
        )
        held.set()
        async with asyncio.timeout(300):
            await runs.ended(run_id)
