"""Given answers: first alone, then beside the policy's own, in one run and one ledger."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunState
from tests.orchestrator.fakes import metric_lines, run_to_end, world, write_tasks

GIVEN, WARMUP = 12, 2


def tokens_of(messages: list[dict[str, Any]]) -> list[int]:
    return [token for one in messages for token in (one["role"] + one["content"] + "\n").encode()]


async def tokenize(request: web.Request) -> web.Response:
    body = await request.json()
    asks = list(b"assistant") if body["add_generation_prompt"] else []
    return web.json_response({"tokens": tokens_of(body["messages"]) + asks})


def routes(app: web.Application) -> None:
    app.router.add_post("/tokenize", tokenize)


def write_answers(folder: Path) -> str:
    path = folder / "answers.jsonl"
    rows = [
        {
            "task_id": f"given-{number}",
            "messages": [{"role": "user", "content": f"say {number}"}],
            "split": "train",
            "answer": f"right {number}",
        }
        for number in range(GIVEN)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(folder: Path, *, weight: float, **changes: Any) -> RunConfig:
    answers = {"file": write_answers(folder), "given": True, "weight": weight}
    tasks = {"file": str(write_tasks(folder / "tasks.jsonl")), "weight": 3.0}
    size = {"steps": 6, "batch_groups": 4, "group_size": 4, "checkpoint": {"every": 1}}
    names = {"name": "test", "model": "tiny", "run_root": str(folder / "runs")}
    learned = {"tasks": [tasks, answers], "algorithm": {"cross_entropy": {"warmup_steps": WARMUP}}}
    return RunConfig.model_validate(names | size | learned | changes)


async def test_a_run_warms_up_on_given_answers_and_goes_on_with_its_own(tmp_path: Path) -> None:
    async with world(tmp_path, more_routes=routes) as cluster:
        status = await run_to_end(cluster, config(tmp_path, weight=1.0))
        assert status.state is RunState.FINISHED, status.detail
        batches = [batch for _, batch in cluster.trainer.batches]
    given = [[group.trajectories[0].given for group in batch.groups] for batch in batches]
    assert all(map(all, given[:WARMUP]))
    assert [sum(one) for one in given[WARMUP:]] == [1] * (len(given) - WARMUP)
    for group in batches[0].groups:
        (one,) = group.trajectories
        said = bytes(one.trajectory.prompt_token_ids).decode()
        number = int(said.split()[1])
        assert said == f"usersay {number}\nassistant"
        assert bytes(one.trajectory.response_token_ids).decode() == f"right {number}\n"
    lines = metric_lines(status)
    assert [line["given_answers"] for line in lines] == [4, 4, 1, 1, 1, 1]
    assert [line["reward"] is None for line in lines] == [True] * WARMUP + [False] * 4


async def test_answers_of_no_weight_are_used_in_the_warm_up_alone(tmp_path: Path) -> None:
    async with world(tmp_path, more_routes=routes) as cluster:
        status = await run_to_end(cluster, config(tmp_path, weight=0.0))
        assert status.state is RunState.FINISHED, status.detail
    assert [line["given_answers"] for line in metric_lines(status)] == [4, 4, 0, 0, 0, 0]


async def test_a_run_that_learns_from_given_answers_alone_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, more_routes=routes, no_signal_batches=2) as cluster:
        cluster.router.answers = lambda asked, index, version: False
        status = await run_to_end(cluster, config(tmp_path, weight=1.0))
    assert (status.state, status.step) == (RunState.FINISHED, 6), status.detail


@pytest.mark.parametrize("on_stale", ["drop", "mask"])
async def test_a_given_answer_is_never_too_old(tmp_path: Path, on_stale: str) -> None:
    release, asked = asyncio.Event(), []

    async def slow(request: web.Request) -> web.Response:
        asked.append((await request.json())["messages"][0]["content"])
        if len(asked) == 1:  # until the answers of several batches have their tokens
            await release.wait()
        if len(asked) > 10:
            release.set()
        return await tokenize(request)

    def slowly(app: web.Application) -> None:
        app.router.add_post("/tokenize", slow)

    schedule = {"preset": "async", "max_staleness": 1, "on_stale": on_stale}
    async with world(tmp_path, more_routes=slowly) as cluster:
        whole = config(tmp_path, weight=1.0, schedule=schedule, steps=12, algorithm={})
        status = await run_to_end(cluster, whole)
        assert status.state is RunState.FINISHED, status.detail
        batches = [batch for _, batch in cluster.trainer.batches]
    assert release.is_set()
    learned = [
        bytes(group.trajectories[0].trajectory.prompt_token_ids).decode()
        for batch in batches
        for group in batch.groups
        if group.trajectories[0].given
    ]
    assert f"user{asked[0]}\nassistant" in learned


@pytest.mark.parametrize("steps", [1, WARMUP, WARMUP + 2])
async def test_a_run_that_is_stopped_in_or_after_its_warm_up_goes_on_there(
    tmp_path: Path, steps: int
) -> None:
    async with world(tmp_path, more_routes=routes) as cluster:
        whole = config(tmp_path, weight=0.0)
        first = await run_to_end(cluster, whole.model_copy(update={"steps": steps}))
        assert first.state is RunState.FINISHED, first.detail
        again = await run_to_end(cluster, whole, resume=first.run_id)
        assert again.state is RunState.FINISHED, again.detail
        batches = [batch for _, batch in cluster.trainer.batches]
    assert [line["given_answers"] for line in metric_lines(again)] == [4, 4, 0, 0, 0, 0]
    taken = [group.group_id for batch in batches for group in batch.groups]
    assert len(taken) == len(set(taken)), "one ledger: nothing is learned from twice"


async def test_a_router_that_is_away_for_a_while_costs_no_given_answer(tmp_path: Path) -> None:
    asked: list[None] = []

    async def away_at_first(request: web.Request) -> web.Response:
        asked.append(None)
        return web.Response(status=503) if len(asked) <= 8 else await tokenize(request)

    def away(app: web.Application) -> None:
        app.router.add_post("/tokenize", away_at_first)

    async with world(tmp_path, more_routes=away, rollout_retries=0) as cluster:
        status = await run_to_end(cluster, config(tmp_path, weight=0.0, steps=1))
    assert status.state is RunState.FINISHED, status.detail
    assert status.failures == {}


async def test_a_template_that_renders_a_prompt_otherwise_is_named(tmp_path: Path) -> None:
    async def other(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": [len(body["messages"]), 1, 2]})

    def bad(app: web.Application) -> None:
        app.router.add_post("/tokenize", other)

    async with world(tmp_path, more_routes=bad, failures_in_row=1) as cluster:
        status = await run_to_end(cluster, config(tmp_path, weight=1.0))
    assert status.state is RunState.FAILED
    assert set(status.failures) == {"given_answer"}
    assert "chat template" in status.failure_example


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"algorithm": {}}, "Never taken: give it a weight"),
        ({"tasks": [{"file": "t"}]}, "No source of tasks has `given: true`"),
        ({"tasks": [{"file": "t", "weight": 0}]}, "above 0"),
        ({"tasks": [{"file": "t", "given": True, "environment": "external"}]}, "environment"),
        (
            {
                "algorithm": {
                    "preset": "ppo",
                    "critic": {"warmup_steps": 1},
                    "cross_entropy": {"warmup_steps": WARMUP},
                }
            },
            "The policy learns nothing in these steps",
        ),
    ],
)
def test_what_would_never_be_learned_from_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        config(tmp_path, weight=0.0, **changes)


def test_a_row_without_its_answer_is_named(tmp_path: Path) -> None:
    run = config(tmp_path, weight=1.0)
    path = Path(str(run.tasks[1].file))
    path.write_text(path.read_text().replace('"answer": "right 3"', '"data": {}'))
    with pytest.raises(InvalidInput, match=r"answers.jsonl, line 4.*answer"):
        TaskTable(run)
