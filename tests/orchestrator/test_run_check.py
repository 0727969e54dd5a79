"""What `--dry-run` refuses is refused at a real start, too."""

from dataclasses import replace
from pathlib import Path

import pytest

from services.orchestrator.checks.run_check import DeploymentFacts, problems
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState
from tests.orchestrator.fakes import World, run_to_end, world, write_tasks

LOAD = RouterLoad(
    replicas=2, full=0, in_flight=0, waiting=0, queued=0.0, kv_usage=None, max_choices=8
)


def small_disk(cluster: World, monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster.trainer.state

    async def with_large_checkpoints():
        return replace(await state(), checkpoint_bytes=10**18, checkpoints_kept=2)

    monkeypatch.setattr(cluster.trainer, "state", with_large_checkpoints)


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"algorithm": {"warmup_steps": 5}}, "algorithm.warmup_steps", "fewer"),
        ({"algorithm": {"minibatches": 17}}, "algorithm.minibatches", "at most"),
        ({"algorithm": {"minibatches": 16}}, "batch_groups", "2 groups of ranks"),
        ({"algorithm": {"overlong_limit": 257}}, "algorithm.overlong_limit", "at most"),
        (
            {
                "algorithm": {"advantage": "reinforce_plus_plus"},
                "group_size": 1,
                "schedule": {"dynamic_sampling": True},
            },
            "schedule.dynamic_sampling",
            "group_size: 2",
        ),
        ({"rollout_timeout_s": 0.1}, "rollout_timeout_s", "longer"),
        ({"batch_groups": 25}, "batch_groups", "24 tasks to learn from"),
        ({"group_size": 9}, "group_size", "max_choices, 8"),
        ({"model": "other"}, "model", "serve small, tiny"),
        ({"sampling": {"max_tokens": 4096}, "rollout_timeout_s": 60.0}, "sampling", "4096 tokens"),
        ({"environment": "/mine.py:rollout"}, "environment", "`environments: true`"),
        (
            {"trackers": [{"kind": "wandb", "base_url": "https://evil.example"}]},
            "trackers.wandb",
            "`tracker_addresses: true`",
        ),
        ({"batch_groups": 20}, "orchestrator.score_queue", "Up to 80 answers"),
        ({"run_root": "/proc"}, "run_root", "GB are free"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_go_well_is_refused_at_a_real_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, field: str, fix: str
) -> None:
    async with world(tmp_path, score_queue=79) as cluster:
        cluster.router.load = LOAD
        if field == "run_root":
            small_disk(cluster, monkeypatch)
        runs = Runs(cluster.config, lambda: cluster.peers)
        with pytest.raises(InvalidInput) as refused:
            await runs.start(RunRequest(config=cluster.run_config(**changes)))
        assert refused.value.field.startswith(field)
        assert fix in refused.value.fix
        assert runs.list() == []
        assert not cluster.run_root.exists()


def test_an_episode_may_be_allowed_more_tokens_than_one_of_its_calls(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks.jsonl")
    keys = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}
    keys |= {"task_file": str(tasks), "algorithm": {"overlong_limit": 257}}
    for environment, found in ((None, ["algorithm.overlong_limit"]), ("external", [])):
        run = RunConfig.model_validate(keys | {"environment": environment})
        told = problems(run, TaskTable(run), DeploymentFacts())
        assert [one.field for one in told] == found


async def test_ranks_that_share_rows_need_trajectories_for_their_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        state = cluster.trainer.state

        async def of_eight_ranks_that_share_all_rows():
            return replace(await state(), world_size=8, row_groups=1)

        monkeypatch.setattr(cluster.trainer, "state", of_eight_ranks_that_share_all_rows)
        config = cluster.run_config(steps=1, algorithm={"minibatches": 16})
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail


async def test_a_run_may_call_its_model_by_any_of_its_names(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(model="small"))
    assert status.state is RunState.FINISHED


async def test_rows_that_engines_and_trainer_would_score_apart_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        state, longest = cluster.trainer.state, 4095

        async def of_a_model_with_longrope():
            return replace(await state(), longest_row=longest)

        monkeypatch.setattr(cluster.trainer, "state", of_a_model_with_longrope)
        with pytest.raises(InvalidInput, match=r"max_model_len.*4096.*max_model_len to 4095"):
            await run_to_end(cluster, cluster.run_config(steps=1))
        longest = 4096
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        assert status.state is RunState.FINISHED


async def test_what_a_service_says_only_later_is_refused_before_the_first_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        state, away = cluster.trainer.state, [True]

        async def away_at_first():
            if away:
                away.clear()
                raise NotReady("starting")
            return await state()

        monkeypatch.setattr(cluster.trainer, "state", away_at_first)
        config = cluster.run_config(algorithm={"minibatches": 16})
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FAILED
        assert "batch_groups" in status.detail
        assert "2 groups of ranks" in status.detail
        assert not cluster.router.asked


async def test_a_run_that_goes_on_has_room_for_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        status = await run_to_end(cluster, cluster.run_config(steps=1))
        small_disk(cluster, monkeypatch)
        again = await run_to_end(cluster, cluster.run_config(steps=2), resume=status.run_id)
        assert (again.state, again.step) == (RunState.FINISHED, 2), again.detail
