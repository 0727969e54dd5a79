"""A user's own rollout function, in its own process, against a router that is real HTTP."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.ledger.ledger import Ledger
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.rollout import environment_process
from services.orchestrator.rollout.environment_process import EnvironmentProcess
from services.orchestrator.rollout.episodes import EpisodeSampler
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import RolloutFailed, RolloutRequest
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunRequest, RunState
from services.protocol.run.task import Task
from tests.orchestrator.fakes import World, run_to_end, trajectories, world, write_tasks

pytestmark = pytest.mark.usefixtures("no_drawing")

ZOO = f"{Path(__file__).parent / 'zoo.py'}:rollout"
FAILING = {
    "raises": "environment_raised",
    "exits": "environment_raised",
    "refused": "environment_raised",
    "never_calls": "environment_never_called",
    "nonsense": "environment_result",
    "nan": "environment_result",
    "of_other_turns": "environment_result",
    "sleeps": "environment_timeout",
    "blocks": "environment_timeout",
    "clings": "environment_timeout",
    "dies": "environment_died",
}


def request(
    how: str,
    *,
    n: int = 2,
    timeout_s: float | None = 300.0,
    progress_s: float = 600.0,
    grader: bool = False,
) -> RolloutRequest:
    row: dict[str, Any] = {
        "task_id": how,
        "messages": [{"role": "user", "content": how}],
        "split": "train",
        "data": {"how": how},
    }
    if grader:
        test = {"stdin": "", "expected": ""}
        row["grader"] = {"kind": "python_stdio", "tests": [test]}
    return RolloutRequest(
        session=f"run-{how}",
        messages=[],
        n=n,
        temperature=0.7,
        max_tokens=9,
        seed=5,
        limits=RolloutLimits(total_s=timeout_s, progress_s=progress_s),
        task=Task.model_validate(row),
    )


def sampler(cluster: World, environment: str = ZOO) -> EpisodeSampler:
    cluster.bus.publish_version(1)
    player = EnvironmentProcess(environment)
    return EpisodeSampler(cluster.config, player=player, model="tiny", run_id="r")


async def episodes(rollouts: EpisodeSampler, asked: RolloutRequest) -> list[tuple]:
    arrived: list[tuple] = []
    await rollouts.sample(asked, lambda *one: arrived.append(one))
    return arrived


async def let_go(rollouts: EpisodeSampler) -> None:
    """Wait until nothing is left of the episodes before: a blocked worker takes others along."""
    async with asyncio.timeout(300):
        while True:
            if not rollouts._player._open:
                return
            await asyncio.sleep(0.01)


async def test_an_episode_is_one_trajectory_whose_context_carries_no_gradient(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster, sampler(cluster) as rollouts:
        arrived = await episodes(rollouts, request("two_turns", n=8))
        assert sorted(index for index, *_ in arrived) == list(range(8))
        lengths = Counter(len(one.response_token_ids) for _, one, _ in arrived)
        assert set(lengths) == {3, 8}, "one call, or two with the user's tokens between"
        for _, one, score in arrived:
            assert one.loss_mask == (
                (1, 1, 1) if len(one.loss_mask) == 3 else (1, 1, 1, 0, 0, 1, 1, 1)
            )
            assert score.reward in (0.0, 1.0)
        sent = [asked.body for asked in cluster.router.asked]
        assert {body["temperature"] for body in sent} == {0.7}, "an environment cannot change it"
        assert {(body["model"], body["max_tokens"], body["top_p"]) for body in sent} == {
            ("tiny", 5, 1.0)
        }
        assert len({body["seed"] for body in sent}) == len(sent)
        assert not cluster.router.sessions.open, "what was read is deleted"


async def test_rewards_of_calls_reach_the_tokens_of_their_turns(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        async with sampler(cluster) as rollouts:
            arrived = await episodes(rollouts, request("by_turn", n=8))
        assert {score.returns[0][1] for _, _, score in arrived} == {0.25, 1.25}
        for _, one, score in arrived:
            last = score.reward - 0.25
            assert score.returns == ((3, score.reward), (8, last))
            assert len(one.response_token_ids) == 8


async def test_a_text_goes_to_the_grader_and_the_same_seed_gives_the_same_episode(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster, sampler(cluster) as rollouts:
        runs = [await episodes(rollouts, request("graded", n=2, grader=True)) for _ in range(2)]
        for arrived in runs:
            assert {one[1].text for one in arrived} <= {"good enough", "bad enough"}
            assert all(len(one) == 2 for one in arrived), "no score yet"
        first, second = (sorted((i, one.response_token_ids) for i, one in run) for run in runs)
        assert first == second
        with pytest.raises(RolloutFailed, match="no grader for it"):
            await episodes(rollouts, request("graded"))


async def test_each_way_to_fail_has_a_name_and_costs_no_later_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_process, "_GRACE_S", 0.2)
    async with world(tmp_path) as cluster, sampler(cluster) as rollouts:
        for how, reason in FAILING.items():
            sampled_before = cluster.router.sessions.sampled
            failed = request(how, timeout_s=1.0 if reason == "environment_timeout" else 300.0)
            arrived: list[tuple] = []
            with pytest.raises(RolloutFailed) as caught:
                await rollouts.sample(failed, lambda *one, to=arrived: to.append(one))
            assert caught.value.reason == reason, how
            tokens = sum(len(one.response_token_ids) for _, one, _ in arrived)
            assert tokens == cluster.router.sessions.sampled - sampled_before, how
            assert all(score.reward is None for *_, score in arrived)
            await let_go(rollouts)
        assert len(await episodes(rollouts, request("two_turns"))) == 2
        assert not cluster.router.sessions.open


@pytest.mark.parametrize("how", ["sleeps", "blocks"])
async def test_an_episode_without_a_call_for_too_long_is_given_up_by_a_name_of_its_own(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_process, "_GRACE_S", 0.2)
    async with world(tmp_path) as cluster, sampler(cluster) as rollouts:
        quiet = request(how, timeout_s=None, progress_s=1.0)
        with pytest.raises(RolloutFailed) as caught:
            await episodes(rollouts, quiet)
        assert caught.value.reason == "environment_stalled"
        assert "no progress for 1 s" in str(caught.value)
        await let_go(rollouts)
        assert len(await episodes(rollouts, request("two_turns"))) == 2


async def test_an_episode_that_fails_is_left_out_of_a_group_that_goes_on(tmp_path: Path) -> None:
    zoo = tmp_path / "half.py"
    zoo.write_text(
        "count = 0\n"
        "async def rollout(client, task):\n"
        "    global count\n"
        "    count += 1\n"
        "    number = count\n"
        "    messages = [{'role': 'user', 'content': 'x'}]\n"
        "    await client.chat.completions.create(model='', messages=messages)\n"
        "    return number / 0 if number == 2 else number\n"
    )
    async with world(tmp_path) as cluster:
        cluster.bus.publish_version(1)
        player = EnvironmentProcess(f"{zoo}:rollout")
        rollouts = EpisodeSampler(cluster.config, player=player, model="m", run_id="r")
        async with rollouts:
            arrived = await episodes(rollouts, request("any", n=3))
    assert sorted(score.reward or 0.0 for *_, score in arrived) == [0.0, 1.0, 3.0]
    (left_out,) = [score for *_, score in arrived if score.reward is None]
    assert left_out.detail == "environment_raised: ZeroDivisionError: division by zero"


async def test_half_of_a_surrogate_pair_costs_its_episode_at_most(tmp_path: Path) -> None:
    environment = tmp_path / "half.py"
    environment.write_text(
        "import itertools\n"
        "numbers = itertools.count()\n"
        "async def rollout(client, task):\n"
        "    messages = [{'role': 'user', 'content': 'x'}]\n"
        "    await client.chat.completions.create(model='', messages=messages)\n"
        "    number = next(numbers)\n"
        "    half = chr(0xD83D)\n"
        "    if number % 4 == 3:\n"
        "        raise ValueError(half)\n"
        "    return ('good ' if number % 2 else 'bad ') + half\n"
    )
    async with world(tmp_path, environments=True) as cluster:
        config = cluster.run_config(environment=f"{environment}:rollout", steps=1)
        status = await run_to_end(cluster, config)
        assert status.state is RunState.FINISHED, status.detail
        graded = [job.completion for call in cluster.reward.calls for job in call]
        assert set(graded) == {"good ?", "bad ?"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(1)", "its process died"),
    ],
)
async def test_an_environment_that_cannot_be_imported_fails_the_run_with_its_error(
    tmp_path: Path, text: str, part: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    async with world(tmp_path, environments=True) as cluster:
        config = cluster.run_config(environment=f"{tmp_path / 'broken.py'}:rollout")
        status = await run_to_end(cluster, config)
        assert (status.state, status.ledger.admitted) == (RunState.FAILED, 0)
        assert "cannot be imported" in status.detail
        assert part in status.detail


async def test_an_import_that_takes_too_long_fails_the_run_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_process, "_START_S", 5.0)
    slow = tmp_path / "slow.py"
    slow.write_text("import time\n\ntime.sleep(600)\n")
    process = EnvironmentProcess(f"{slow}:rollout")
    with pytest.raises(InvalidInput, match="importing it took more than 5 s"):
        await process.start()
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if str(slow) in " ".join(child.cmdline())]


def test_a_host_whose_orchestrator_is_gone_forks_no_more_workers() -> None:
    read, write = os.pipe()
    command = [sys.executable, "-m", "services.orchestrator.rollout.environment_host", ZOO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write) as host:
        os.close(write)
        os.close(read)
        try:
            assert host.wait(300) == 0
        finally:
            host.kill()


async def test_what_an_episode_forks_neither_answers_for_it_nor_outlives_it(tmp_path: Path) -> None:
    """A child that returns from the episode, one that a pool has, and one that goes on."""
    environment = tmp_path / "forks.py"
    environment.write_text(
        "import concurrent.futures, multiprocessing, os, signal, sys\n"
        "async def rollout(client, task):\n"
        "    message = {'role': 'user', 'content': 'go'}\n"
        "    await client.chat.completions.create(model='m', messages=[message])\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        return 7.0\n"
        "    os.waitpid(child, 0)\n"  # so that the child is the first to answer
        "    fork = multiprocessing.get_context('fork')\n"
        "    with concurrent.futures.ProcessPoolExecutor(1, fork) as pool:\n"
        "        half = pool.submit(divmod, 1, 2).result()[1] / 2\n"
        "    if os.fork() == 0:\n"
        "        signal.pause()\n"
        "    return half + len(sys.stdin.read())\n"  # the orders of other episodes are not there
    )
    name = f"{environment}:rollout"
    async with world(tmp_path) as cluster, sampler(cluster, name) as rollouts:
        arrived = await episodes(rollouts, request("two_turns", n=4))
        assert [score.reward for *_, score in arrived] == [0.5] * 4
        worker = rollouts._player.worker
        forked = psutil.Process(worker).children(recursive=True)
        assert forked
    async with asyncio.timeout(300):
        while any(map(_runs, forked)):  # noqa: ASYNC110  they are nobody's children
            await asyncio.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_code_of_a_run_file_runs_only_where_the_deployment_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        config = cluster.run_config(environment=ZOO)
        with pytest.raises(InvalidInput, match="environments: true"):
            await runs.start(RunRequest(config=config))


def zoo_tasks(path: Path, kinds: list[str], seed: int) -> None:
    rows = [json.loads(line) for line in write_tasks(path).read_text().splitlines()]
    chance = random.Random(seed)
    for row in rows:
        row["data"] = {"how": chance.choice(kinds) if row["split"] == "train" else "two_turns"}
        if chance.random() < 0.5 and row["data"]["how"] != "graded":
            del row["grader"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


async def test_a_runs_ledger_balances_whatever_an_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_process, "_GRACE_S", 0.1)
    settings = {"environments": True, "rollout_retries": 1, "failures_in_row": 20}
    async with world(tmp_path, **settings) as cluster:
        zoo_tasks(cluster.task_file, [*FAILING, *["two_turns", "graded"] * 7], seed=0)
        config = cluster.run_config(
            environment=ZOO,
            steps=2,
            rollout_timeout_s=12.0,  # of which a busy machine takes most to start a process
            schedule={"preset": "one_step_off"},
        )
        status = await run_to_end(cluster, config)
        assert (status.state, status.step) == (RunState.FINISHED, 2), status.detail
        ledger = Ledger(Path(status.run_dir) / "ledger.sqlite")
        assert ledger.imbalance() == 0
        assert ledger.counts() == status.ledger
        assert sum(ledger.reasons("failed").values()) == status.ledger.failed
        trained = sum(
            sum(one.trajectory.loss_mask)
            for _, b in cluster.trainer.batches
            for one in trajectories(b)
        )
        assert 0 < trained <= ledger.token_counts().trained
        ledger.close()
        assert set(ledger_reasons(status.failures)) <= set(FAILING.values()) | {"environment_died"}


def ledger_reasons(failures: dict[str, int]) -> list[str]:
    return [reason for reason, count in failures.items() if count]


async def test_one_run_has_answers_and_episodes_of_two_environments(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(
        "async def rollout(client, task):\n"
        "    messages = [{'role': 'user', 'content': 'other'}]\n"
        "    await client.chat.completions.create(model='', messages=messages)\n"
        "    return float(sum(map(ord, task.task_id)) % 2)\n"
    )
    async with world(tmp_path, environments=True) as cluster:
        sources: list[dict[str, Any]] = [{"file": str(cluster.task_file)}]
        for name, environment in (("zoo", ZOO), ("other", f"{other}:rollout")):
            file = write_tasks(tmp_path / f"{name}.jsonl", train=8, heldout=1)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            for row in rows:
                row |= {"task_id": f"{name}-{row['task_id']}", "data": {"how": "two_turns"}}
                del row["grader"]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            sources.append({"file": str(file), "environment": environment})
        status = await run_to_end(
            cluster, cluster.run_config(task_file=None, tasks=sources, steps=2)
        )
        assert status.state is RunState.FINISHED, status.detail
        assert status.ledger.failed == 0
        assert {one["rollout"].partition("-2")[0] for one in cluster.router.sessions.metadata}
        asked = {asked.session.startswith("sess_") for asked in cluster.router.asked}
        assert asked == {True, False}
        said = {asked.body["messages"][0]["content"] for asked in cluster.router.asked}
        assert "other" in said
