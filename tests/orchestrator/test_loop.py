"""The whole loop against a real HTTP router and peers in this process."""

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from services.ledger.ledger import Ledger
from services.observability.metrics import RunMetrics
from services.orchestrator.core.results import GroupResult
from services.orchestrator.evaluation.heldout import HeldOut
from services.orchestrator.lifecycle.run import Run
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.rollout.rollout import Arrived, RolloutClient, RolloutRequest
from services.protocol.run.orchestrator import RunRequest, RunState, RunStatus
from tests.orchestrator.fakes import metric_lines, run_to_end, trajectories, world

pytestmark = pytest.mark.usefixtures("no_drawing")

PRESETS = [
    {"preset": "sync"},
    {"preset": "one_step_off"},
    {"preset": "async", "max_staleness": 3},
]
ALL_PRESETS = [*PRESETS, {"preset": "stream"}, {"preset": "partial"}]


async def until(run: Run, condition: Callable[[RunStatus], bool]) -> None:
    """Wait for a condition on a run's status, looked at whenever something changes."""
    async with asyncio.timeout(300):
        while not condition(run.status()):
            await run._context.changes.after(run._context.changes.count, 0.01)


def ledger_rows(status: RunStatus) -> list[dict]:
    with sqlite3.connect(Path(status.run_dir) / "ledger.sqlite") as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM groups ORDER BY group_id")]


def slow_some(asked, index: int) -> float:
    """A heavy tail: one prompt in five is ten times slower than the rest."""
    slow = asked.body["seed"] % 5 == 0 and index == 0
    return 0.03 if slow else 0.003


@pytest.mark.parametrize("schedule", ALL_PRESETS, ids=lambda schedule: schedule["preset"])
async def test_every_admitted_sample_group_closes_exactly_once(tmp_path: Path, schedule) -> None:
    async with world(tmp_path, commit_delay_s=0.005) as cluster:
        cluster.router.delay = slow_some
        status = await run_to_end(cluster, cluster.run_config(schedule=schedule))
        assert (status.state, status.step) == (RunState.FINISHED, 5), status.detail
        consumed = Counter(g.group_id for _, batch in cluster.trainer.batches for g in batch.groups)
        assert set(consumed.values()) == {1}
        rows = ledger_rows(status)
        assert {row["group_id"] for row in rows if row["status"] == "trained"} == set(consumed)
        assert not [row for row in rows if row["status"] == "in_flight"]
        assert sum(row["tokens"] for row in rows) > 0
        ledger = Ledger(Path(status.run_dir) / "ledger.sqlite")
        assert ledger.imbalance() == 0
        ledger.close()


@pytest.mark.parametrize("schedule", PRESETS, ids=lambda schedule: schedule["preset"])
@pytest.mark.parametrize("on_stale", ["wait", "drop"])
async def test_no_trajectory_is_trained_above_max_staleness(
    tmp_path: Path, schedule, on_stale: str
) -> None:
    async with world(tmp_path, commit_delay_s=0.01) as cluster:
        cluster.router.delay = slow_some
        config = cluster.run_config(schedule={**schedule, "on_stale": on_stale}, steps=8)
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        staleness = [
            version - one.trajectory.oldest_version
            for version, batch in cluster.trainer.batches
            for one in trajectories(batch)
        ]
        assert max(staleness) <= config.schedule.max_staleness
        assert max(line["staleness_max"] for line in metric_lines(status)) == max(staleness)
        if on_stale == "wait":
            assert status.ledger.expired == 0


async def test_an_answer_that_comes_as_its_group_is_closed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: GroupResult
) -> None:
    rolling = asyncio.Event()

    async def late(_: RolloutClient, request: RolloutRequest, arrived: Arrived) -> None:
        """As an episode whose last wait was over already."""
        if "evaluation" in request.session:
            return
        rolling.set()
        try:
            await asyncio.Event().wait()
        finally:
            arrived(0, result.graded[0].trajectory)

    monkeypatch.setattr(RolloutClient, "sample", late)
    async with world(tmp_path) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        status = await runs.start(RunRequest(config=cluster.run_config()))
        async with asyncio.timeout(300):
            await rolling.wait()
        groups = runs.active(status.run_id)._loop._groups
        task = groups._rolling[1].task
        groups.close(1, "expired", reason="stale")
        await asyncio.wait({task})
        assert groups.defect is None
        assert task.cancelled()
        await runs.close()


async def test_one_step_off_really_overlaps_rollout_and_training(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.trainer.hold = asyncio.Event()
        config = cluster.run_config(schedule={"preset": "one_step_off"})
        runs = Runs(cluster.config, lambda: cluster.peers)
        status = await runs.start(RunRequest(config=config))
        async with asyncio.timeout(300):
            await cluster.trainer.entered.wait()
        await until(runs.get(status.run_id), lambda status: status.ledger.admitted == 8)
        cluster.trainer.hold.set()
        async with asyncio.timeout(300):
            await runs.ended(status.run_id)
        staleness = {
            version - one.trajectory.oldest_version
            for version, batch in cluster.trainer.batches
            for one in trajectories(batch)
        }
        assert staleness == {0, 1}


async def test_in_sync_nothing_is_sampled_before_every_replica_holds_the_newest_version(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        # Nobody waits for a late joiner, so both replicas are in service from the start.
        cluster.bus.newest = 1
        cluster.bus.committed = dict.fromkeys(cluster.bus.committed, 1)
        cluster.bus.commit_delay_s = 0.05
        behind: list[dict[str, int | None]] = []

        async def before(asked) -> None:
            if set(cluster.bus.committed.values()) != {cluster.bus.newest}:
                behind.append(dict(cluster.bus.committed))

        cluster.router.before = before
        status = await run_to_end(cluster, cluster.run_config(steps=3))
        assert status.state is RunState.FINISHED, status.detail
        assert not behind


async def test_same_seed_same_schedule_same_numbers(tmp_path: Path) -> None:
    weights = []
    for attempt in ("a", "b"):
        folder = tmp_path / attempt
        folder.mkdir()
        async with world(folder) as cluster:
            cluster.router.delay = slow_some if attempt == "a" else lambda asked, index: 0.0
            status = await run_to_end(cluster, cluster.run_config(seed=7))
            assert status.state is RunState.FINISHED, status.detail
            weights.append(cluster.trainer.weights)
    assert weights[0] == weights[1]


async def test_another_seed_gives_other_numbers(tmp_path: Path) -> None:
    weights = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        async with world(folder) as cluster:
            await run_to_end(cluster, cluster.run_config(seed=seed, steps=2))
            weights.append(cluster.trainer.weights)
    assert weights[0] != weights[1]


async def test_an_infrastructure_failure_is_never_a_reward(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.reward.ungraded = lambda job: job.job_id.endswith("/0")
        status = await run_to_end(cluster, cluster.run_config(steps=3))
        assert status.state is RunState.FINISHED, status.detail
        sizes = {len(g.trajectories) for _, batch in cluster.trainer.batches for g in batch.groups}
        assert sizes == {3}
        lines = metric_lines(status)
        assert all(
            line["trajectories_ungraded"] == line["groups_trained"] + line["groups_filtered"]
            for line in lines
        )


@pytest.mark.parametrize(("broken", "least_graded"), [({0, 1, 2}, 0.0), ({0, 1}, 0.75)])
async def test_a_group_of_which_too_few_answers_are_graded_fails(
    tmp_path: Path, broken: set[int], least_graded: float
) -> None:
    async with world(tmp_path) as cluster:
        first: list[str] = []

        def ungraded(job) -> bool:
            group = job.job_id.split("/")[1]
            if not first and group.isdigit():
                first.append(group)
            return [group] == first and int(job.job_id[-1]) in broken

        cluster.reward.ungraded = ungraded
        config = cluster.run_config(steps=2, algorithm={"least_graded": least_graded})
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        failed = [row for row in ledger_rows(status) if row["status"] == "failed"]
        assert [row["reason"] for row in failed] == ["infra_error"]
        assert failed[0]["tokens"] > 0


async def test_groups_of_equal_rewards_are_filtered_and_count_towards_the_batch(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        cluster.router.answers = lambda asked, index, version: (
            asked.body["seed"] % 2 == 0 or index == 0
        )
        status = await run_to_end(cluster, cluster.run_config(steps=4))
        assert status.ledger.filtered > 0
        for line in metric_lines(status):
            assert line["groups_trained"] + line["groups_filtered"] == 4
        rewards = {
            frozenset(one.reward for one in group.trajectories)
            for _, batch in cluster.trainer.batches
            for group in batch.groups
        }
        assert rewards == {frozenset({0.0, 1.0})}


@pytest.mark.parametrize(
    "algorithm", [{"preset": "ppo"}, {"kl": {"coefficient": 0.1}}, {"overlong_limit": 9}]
)
async def test_algorithms_that_learn_from_equal_rewards_get_them(
    tmp_path: Path, algorithm: dict[str, object]
) -> None:
    async with world(tmp_path) as cluster:
        cluster.router.answers = lambda asked, index, version: True
        status = await run_to_end(cluster, cluster.run_config(steps=2, algorithm=algorithm))
        assert (status.ledger.filtered, status.ledger.trained) == (0, 8)


async def test_dynamic_sampling_replaces_groups_of_equal_rewards(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.router.answers = lambda asked, index, version: (
            asked.body["seed"] % 2 == 0 or index == 0
        )
        config = cluster.run_config(steps=4, schedule={"dynamic_sampling": True})
        status = await run_to_end(cluster, config)
        assert status.ledger.filtered > 0
        assert [len(batch.groups) for _, batch in cluster.trainer.batches] == [4] * 4


@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_run_with_nothing_left_to_learn_finishes_early(
    tmp_path: Path, dynamic: bool
) -> None:
    async with world(tmp_path, no_signal_batches=3) as cluster:
        cluster.router.answers = lambda asked, index, version: True
        config = cluster.run_config(schedule={"dynamic_sampling": dynamic})
        status = await run_to_end(cluster, config)
        assert (status.state, status.step) == (RunState.FINISHED, 0)
        assert "nothing left to learn" in status.detail
        assert status.ledger.filtered >= 12
        assert status.ledger.in_flight == 0
        shown = (Path(status.run_dir) / "groups.jsonl").read_text().splitlines()
        assert len(shown) == status.ledger.filtered, "each of them with its rewards"


async def test_a_failed_rollout_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        bad: list[str] = []

        async def before(asked):
            content = asked.body["messages"][0]["content"]
            if content.startswith("train") and (not bad or content in bad):
                bad.append(content)
                return web.Response(status=500, text="engine broke")
            return None

        cluster.router.before = before
        status = await run_to_end(cluster, cluster.run_config(steps=2))
        assert status.state is RunState.FINISHED, status.detail
        failed = [row for row in ledger_rows(status) if row["status"] == "failed"]
        assert [(row["reason"], row["attempts"]) for row in failed] == [("http_500", 3)]
        assert len(bad) == 3


async def test_a_stream_cut_in_the_middle_costs_the_attempt_and_not_the_group(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        cut: list[str] = []

        def cut_after(asked) -> int | None:
            if asked.body["n"] == 1 or len(cut) >= 3:
                return None
            cut.append(asked.session)
            return 2

        cluster.router.cut_after = cut_after
        status = await run_to_end(cluster, cluster.run_config(steps=2))
        assert (status.state, status.ledger.failed) == (RunState.FINISHED, 0), status.detail
        retried = [row for row in ledger_rows(status) if row["attempts"] == 2]
        assert len(retried) == 3
        sizes = {len(g.trajectories) for _, batch in cluster.trainer.batches for g in batch.groups}
        assert sizes == {4}, "a new attempt starts from nothing"
        ledger = Ledger(Path(status.run_dir) / "ledger.sqlite")
        in_ledger = ledger.token_counts().admitted
        ledger.close()
        assert status.tokens_sampled == in_ledger
        assert 0 < status.tokens_evaluated < in_ledger


async def test_a_router_that_is_away_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        refusals = [503, 429, 503]

        async def before(asked):
            return web.Response(status=refusals.pop()) if refusals else None

        cluster.router.before = before
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert (status.state, status.ledger.failed) == (RunState.FINISHED, 0), status.detail
        assert not refusals


async def test_a_rollout_past_its_deadline_fails_its_group_and_nothing_hangs(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, rollout_retries=0) as cluster:
        stuck: list[str] = []

        async def before(asked):
            if asked.body["n"] > 1 and (not stuck or asked.session in stuck):
                stuck.append(asked.session)
                await asyncio.sleep(60)

        cluster.router.before = before
        sampling = {"max_tokens": 64}
        config = cluster.run_config(steps=2, rollout_timeout_s=0.3, sampling=sampling)
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        failed = [row["reason"] for row in ledger_rows(status) if row["status"] == "failed"]
        assert failed == ["deadline"]


async def test_a_run_whose_every_rollout_is_refused_fails_and_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:

        async def before(asked):
            if asked.body["n"] > 1:
                return web.json_response({"error": {"message": "prompt too long"}}, status=400)
            return None

        cluster.router.before = before
        status = await run_to_end(cluster, cluster.run_config())
        assert status.state is RunState.FAILED
        assert "prompt too long" in status.detail
        assert cluster.bus.lags[-1] is None
        assert {row["attempts"] for row in ledger_rows(status)} == {1}


async def test_the_reward_service_may_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.reward.not_ready = 3
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert (status.state, status.ledger.failed) == (RunState.FINISHED, 0), status.detail


async def test_each_train_step_is_one_turn_where_the_trainer_shares_devices(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        cluster.trainer.shares_devices = True
        status = await run_to_end(cluster, cluster.run_config(steps=3))
        assert status.state is RunState.FINISHED, status.detail
        expected = [(f"begin before {step}", f"end behind {step}") for step in (1, 2, 3)]
        assert cluster.trainer.turns == [one for pair in expected for one in pair]
        lines = (Path(status.run_dir) / "timeline.jsonl").read_text().splitlines()
        turns = [one for one in map(json.loads, lines) if one["kind"] == "turn"]
        assert [one["lane"] for one in turns] == ["turn"] * 3


async def test_the_gauge_of_groups_in_flight_counts_those_in_training_and_falls_to_0_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, training, evaluating = [], [], {}
    monkeypatch.setattr(RunMetrics.in_flight, "set", lambda value, _: told.append(value))
    measure = HeldOut.measure

    async def measured(self: HeldOut, when: str, **how: bool) -> None:
        evaluating[when] = told[-1:]
        await measure(self, when, **how)

    monkeypatch.setattr(HeldOut, "measure", measured)
    async with world(tmp_path) as cluster:
        train = cluster.trainer.train

        async def seen(batch):
            training.append(told[-1])
            return await train(batch)

        cluster.trainer.train = seen
        config = cluster.run_config(steps=3)
        status = await run_to_end(cluster, config)
    assert status.state is RunState.FINISHED, status.detail
    assert len(training) == 3
    assert min(training) >= config.batch_groups
    assert evaluating == {"before training": [], "after training": [0]}


async def test_a_turn_ends_when_its_step_fails_and_the_run_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.trainer.shares_devices = True
        cluster.trainer.die_before, cluster.trainer.lenders_away = {2}, 1
        status = await run_to_end(cluster, cluster.run_config(steps=3))
        assert status.state is RunState.FINISHED, status.detail
        turns = cluster.trainer.turns
        assert turns[:3] == ["begin before 1", "begin before 1", "end behind 1"]
        assert turns[3:5] == ["begin before 2", "end behind -1"]
        assert turns[-2:] == ["begin before 3", "end behind 3"]


@pytest.mark.parametrize("schedule", PRESETS, ids=lambda schedule: schedule["preset"])
@pytest.mark.parametrize("moment", ["die_before", "die_after"])
async def test_a_dead_trainer_comes_back_and_no_prompt_is_lost_or_trained_twice(
    tmp_path: Path, schedule, moment: str
) -> None:
    async with world(tmp_path, commit_delay_s=0.002) as cluster:
        setattr(cluster.trainer, moment, {4})
        config = cluster.run_config(steps=6, schedule=schedule)
        status = await run_to_end(cluster, config)
        assert (status.state, status.step) == (RunState.FINISHED, 6), status.detail
        lines = metric_lines(status)
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert lines[-1]["recoveries"] == 1
        rows = ledger_rows(status)
        trained = [row for row in rows if row["status"] in ("trained", "filtered")]
        positions = sorted(row["position"] for row in trained)
        assert positions == list(range(len(positions)))
        # What the surviving weights were made of: per step the last batch of that number.
        final = {batch.step: batch for _, batch in cluster.trainer.batches}
        survived = Counter(g.group_id for batch in final.values() for g in batch.groups)
        assert set(survived.values()) == {1}
        assert set(survived) == {row["group_id"] for row in rows if row["status"] == "trained"}
        for version, batch in cluster.trainer.batches:
            for one in trajectories(batch):
                lag = version - one.trajectory.oldest_version
                assert lag <= config.schedule.max_staleness


async def test_a_load_that_all_new_ranks_fail_is_made_again(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.trainer.die_before = {2}
        start_run, failed = cluster.trainer.start_run, []

        async def start_run_at_the_second_try(start):
            if cluster.trainer.starts and not failed:
                failed.append(start)
                raise RuntimeError("the trainer's ranks failed in start_run: Input/output error")
            return await start_run(start)

        cluster.trainer.start_run = start_run_at_the_second_try
        status = await run_to_end(cluster, cluster.run_config(steps=3))
        assert (status.state, status.step) == (RunState.FINISHED, 3), status.detail
        assert len(failed) == 1


async def test_rollouts_go_on_while_the_trainer_comes_back_within_the_staleness_bound(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        back = asyncio.Event()
        held: list[str] = []
        finished: list[str] = []

        async def hold(asked, index: int) -> None:
            # Two batches are under way, with tokens, when the trainer dies.
            late = asked.body["n"] > 1 and int(asked.session.split("-")[-2]) > 12
            if late and index == 3 and len(cluster.trainer.starts) <= 1:
                held.append(asked.session)
                await back.wait()
                finished.append(asked.session)

        real_start = cluster.trainer.start_run

        async def start_run(start):
            if cluster.trainer.starts:
                back.set()
                async with asyncio.timeout(300):
                    while len(finished) < len(held):  # noqa: ASYNC110  (the fake has no event)
                        await asyncio.sleep(0)
            return await real_start(start)

        cluster.router.hold = hold
        cluster.trainer.start_run = start_run
        cluster.trainer.die_before = {3}
        config = cluster.run_config(schedule={"preset": "async", "max_staleness": 4})
        status = await run_to_end(cluster, config)
        assert (status.state, status.step) == (RunState.FINISHED, 5), status.detail
        assert held, "nothing was in flight"
        sessions = {asked.session for asked in cluster.router.asked}
        again = {f"{session.rsplit('-', 1)[0]}-2" for session in held}
        assert not again & sessions, "what was in flight was begun anew"
        died_at = 3  # versions 1 to 3 are of the start and the first two steps
        lags = [
            version - one.trajectory.oldest_version
            for version, batch in cluster.trainer.batches
            if version > died_at
            for one in trajectories(batch)
        ]
        assert 0 < max(lags) <= 4, "nothing from before the death was trained"


async def test_groups_are_admitted_while_the_trainer_comes_back_within_the_staleness_bound(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        back = asyncio.Event()

        def held(asked) -> bool:
            return asked.body["n"] > 1 and asked.session.split("-")[-2] == "12"

        async def hold(asked, index: int) -> None:
            if held(asked):
                await back.wait()

        runs = Runs(cluster.config, lambda: cluster.peers)
        real_start, admitted = cluster.trainer.start_run, []

        async def start_run(start):
            if cluster.trainer.starts:
                run = runs.get(start.run_id)
                before = run.status().ledger.admitted
                back.set()  # a group of equal rewards ends, and its place is filled again
                await until(run, lambda status: status.ledger.admitted > before)
                admitted.append((before + 1, run.status().state))
            return await real_start(start)

        cluster.router.answers = lambda asked, index, version: held(asked) or index == 0
        cluster.router.hold = hold
        cluster.trainer.start_run = start_run
        cluster.trainer.die_before = {2}
        schedule = {"preset": "async", "max_staleness": 4, "dynamic_sampling": True}
        status = await runs.start(RunRequest(config=cluster.run_config(schedule=schedule)))
        async with asyncio.timeout(300):
            status = await runs.ended(status.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, 5), status.detail
        assert [state for _, state in admitted] == [RunState.RECOVERING]
        versions = {
            group.group_id: version
            for version, batch in cluster.trainer.batches
            for group in batch.groups
        }
        assert admitted[0][0] in versions, "what was admitted meanwhile was trained"


async def test_a_step_that_kills_the_trainer_each_time_fails_the_run_though_others_succeed(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, recoveries_in_row=3) as cluster:
        train, deaths = cluster.trainer.train, []

        async def die_in_step_4(batch):
            if batch.step == 4:
                deaths.append(batch.step)
                raise cluster.trainer.death()
            return await train(batch)

        cluster.trainer.train = die_in_step_4
        status = await run_to_end(cluster, cluster.run_config(checkpoint={"every": 2}))
        assert status.state is RunState.FAILED
        assert len(deaths) == 4


async def test_a_trainer_that_dies_again_and_again_fails_the_run(tmp_path: Path) -> None:
    async with world(tmp_path, recoveries_in_row=2) as cluster:

        async def always_die(batch):
            raise cluster.trainer.death()

        cluster.trainer.train = always_die
        status = await run_to_end(cluster, cluster.run_config())
        assert status.state is RunState.FAILED
        assert "after every recovery" in status.detail
        assert status.ledger.in_flight == 4


async def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.trainer.train_s = 0.01
        config = cluster.run_config(steps=6, schedule={"preset": "one_step_off"})
        runs = Runs(cluster.config, lambda: cluster.peers)
        first = await runs.start(RunRequest(config=config))
        await until(runs.get(first.run_id), lambda status: status.step >= 3)
        async with asyncio.timeout(300):
            stopped = await runs.stop(first.run_id)
        assert stopped.state is RunState.STOPPED
        assert stopped.step < 6
        assert stopped.ledger.in_flight > 0
        assert cluster.bus.lags[-1] is None
        before = json.loads((Path(stopped.run_dir) / "summary.json").read_text())
        status = await run_to_end(cluster, config, resume=first.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, 6), status.detail
        steps = [batch.step for _, batch in cluster.trainer.batches]
        assert steps == [1, 2, 3, 4, 5, 6]
        rows = ledger_rows(status)
        assert {row["status"] for row in rows} <= {"trained", "filtered"}
        assert [row["position"] for row in rows] == list(range(len(rows)))
        assert status.summary is not None
        assert status.summary.heldout_pass_rate_before == before["heldout_pass_rate_before"]
        assert status.summary.tokens_sampled > before["tokens_sampled"]
        assert status.summary.wall_s > before["wall_s"]
        assert status.summary.weight_pushes > before["weight_pushes"]


async def test_a_ledger_that_is_older_than_the_checkpoint_is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(steps=2))
        ledger = Path(status.run_dir) / "ledger.sqlite"
        with sqlite3.connect(ledger) as edited:
            edited.execute("UPDATE groups SET train_step = 1")
            edited.execute("UPDATE groups SET status = 'expired' WHERE group_id = 5")
        again = await run_to_end(cluster, cluster.run_config(steps=3), resume=status.run_id)
        assert again.state is RunState.FAILED
        assert "not of the same run" in again.detail


async def test_a_killed_orchestrator_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        config = cluster.run_config(steps=6, checkpoint={"every": 2})
        runs = Runs(cluster.config, lambda: cluster.peers)
        first = await runs.start(RunRequest(config=config))
        run = runs.get(first.run_id)
        cluster.trainer.train_s = 0.01
        await until(run, lambda status: status.step == 3)
        # Nothing of a killed process runs on: no checkpoint, no summary, no closing.
        life = runs._life
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        status = await run_to_end(cluster, config, resume=first.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, 6), status.detail
        assert [line["step"] for line in metric_lines(status)] == [1, 2, 3, 4, 5, 6]
        final = {batch.step: batch for _, batch in cluster.trainer.batches}
        survived = Counter(g.group_id for batch in final.values() for g in batch.groups)
        assert set(survived.values()) == {1}
        rows = ledger_rows(status)
        assert set(survived) == {row["group_id"] for row in rows if row["status"] == "trained"}


async def test_with_the_barrier_scoring_waits_until_the_batch_is_rolled_out(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        sampled_at: list[int] = []
        real_score = cluster.reward.score

        async def score(jobs):
            if "evaluation" not in jobs[0].job_id:
                sampled_at.append(cluster.router.sampled)
            return await real_score(jobs)

        cluster.router.delay = slow_some
        cluster.reward.score = score
        config = cluster.run_config(steps=3, schedule={"batch_barrier": True})
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        assert sampled_at
        assert all(sampled % 16 == 0 for sampled in sampled_at), sampled_at


async def test_a_trajectory_is_scored_while_its_own_group_is_still_rolled_out(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        scored: set[str] = set()
        changed = asyncio.Condition()
        real_score = cluster.reward.score

        async def score(jobs):
            answer = await real_score(jobs)
            async with changed:
                scored.update(job.job_id.split("/")[1] for job in jobs)
                changed.notify_all()
            return answer

        async def hold(asked, index: int) -> None:
            if asked.body["n"] > 1 and index == 3:
                group = asked.session.split("-")[-2]
                async with changed:
                    await changed.wait_for(lambda: group in scored)

        cluster.router.hold = hold
        cluster.reward.score = score
        status = await run_to_end(cluster, cluster.run_config(steps=2))
        assert (status.state, status.ledger.failed) == (RunState.FINISHED, 0), status.detail


async def test_a_replica_that_never_commits_does_not_hang_the_run(tmp_path: Path) -> None:
    async with world(tmp_path, replicas_timeout_s=0.2) as cluster:
        cluster.bus._may_serve = lambda version: False
        status = await run_to_end(cluster, cluster.run_config())
        assert status.state is RunState.FAILED
        assert "replica-0" in status.detail
