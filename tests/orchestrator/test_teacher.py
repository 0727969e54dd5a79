"""Another model says how likely it finds each sampled token; its failures are never a reward."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from services.orchestrator.config import OrchestratorConfig, TeacherConfig
from services.orchestrator.core.results import GroupResult
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.rollout.teacher import Teacher, TeacherFailed
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.distillation import DistillationConfig
from services.protocol.run.orchestrator import RunRequest, RunState
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory
from tests.orchestrator.fakes import run_to_end, trajectories, world

KEY = "MILLRACE_TEST_TEACHER_KEY"
TASK = Task.model_validate(
    {
        "task_id": "t",
        "messages": [{"role": "user", "content": "2 + 3?"}],
        "split": "train",
        "data": {"hint": "a sum"},
    }
)


def likes(token: int) -> float:
    return -(token % 7) / 10


class TeacherServer:
    """The part of vLLM's API that a teacher needs."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.fails: list[web.Response] = []
        self.before: Callable[[dict[str, Any]], None] = lambda body: None

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/tokenize", self._tokenize)

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.add(request.headers.get("authorization"))
        self.before(body)
        if self.fails:
            return self.fails.pop()
        assert body["echo"]
        logprobs = [None, *map(likes, body["prompt"][1:]), -0.5]
        return web.json_response({"choices": [{"logprobs": {"token_logprobs": logprobs}}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        said = (await request.json())["messages"][-1]["content"]
        return web.json_response({"tokens": [1000 + len(said)] * 3})


def distilled(**changes: Any) -> dict[str, Any]:
    return {"distillation": {"teacher": "large"} | changes}


async def test_every_token_is_trained_with_the_teachers_logprob(tmp_path: Path) -> None:
    server = TeacherServer()
    async with world(tmp_path, more_routes=server.add_to) as cluster:
        large = TeacherConfig(url=cluster.config.router_url, model="large")
        cluster.config = cluster.config.model_copy(update={"teachers": {"large": large}})
        status = await run_to_end(cluster, cluster.run_config(steps=2, algorithm=distilled()))
        assert status.state is RunState.FINISHED, status.detail
        taught = [one for _, batch in cluster.trainer.batches for one in trajectories(batch)]
        assert taught
        assert {one.teacher is not None for one in taught} == {True}
        for one in taught:
            assert one.teacher == pytest.approx(list(map(likes, one.trajectory.response_token_ids)))
    assert {body["model"] for body in server.asked} == {"large"}


@asynccontextmanager
async def asked(server: TeacherServer, **changes: Any) -> AsyncIterator[Teacher]:
    """A teacher of one answer, at this server."""
    app = web.Application()
    server.add_to(app)
    async with TestServer(app) as place:
        url = f"http://127.0.0.1:{place.port}"
        large = {"url": url, "model": "large"} | changes.pop("place", {})
        config = OrchestratorConfig.model_validate(
            {"router_url": url, "backoff_s": 0.01, "teachers": {"large": large}}
        )
        order = DistillationConfig.model_validate({"teacher": "large"} | changes)
        async with Teacher(order, config, "policy") as teacher:
            yield teacher


async def test_a_teacher_teaches_where_all_rewards_are_equal(tmp_path: Path) -> None:
    server = TeacherServer()
    async with world(tmp_path, more_routes=server.add_to, no_signal_batches=1) as cluster:
        cluster.router.answers = lambda asked, index, version: False
        large = TeacherConfig(url=cluster.config.router_url, model="large")
        cluster.config = cluster.config.model_copy(update={"teachers": {"large": large}})
        config = cluster.run_config(steps=4, algorithm=distilled(rewards=0.0))
        status = await run_to_end(cluster, config)
    assert (status.state, status.step) == (RunState.FINISHED, 4), status.detail


async def test_a_busy_teacher_is_asked_again(answer: Trajectory) -> None:
    server = TeacherServer()
    server.fails = [web.Response(status=503), web.Response(status=429)]
    async with asked(server) as teacher:
        assert await teacher.submit(TASK, answer) == tuple(map(likes, answer.response_token_ids))


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ({"status": 400, "text": "no such model"}, "no such model"),
        ({"text": '{"choices": [{"logprobs": null}]}'}, "returns no logprobs"),
        ({"text": '{"choices": [{"logprobs": {"token_logprobs": [null]}}]}'}, "of each token"),
    ],
)
async def test_what_is_no_answer_is_said(
    answer: Trajectory, response: dict[str, Any], problem: str
) -> None:
    server = TeacherServer()
    server.fails = [web.Response(content_type="application/json", **response) for _ in range(2)]
    async with asked(server) as teacher:
        with pytest.raises(TeacherFailed, match=problem):
            await teacher.submit(TASK, answer)
        with pytest.raises(NotReady, match=f"teacher large: .*{problem}"):
            await teacher.check()


async def test_a_teacher_that_stays_away_costs_its_deadline(answer: Trajectory) -> None:
    server = TeacherServer()
    server.before = lambda body: server.fails.append(web.Response(status=503))
    async with asked(server, place={"timeout_s": 0.2}) as teacher:
        with pytest.raises(TeacherFailed, match="status 503"):
            await teacher.submit(TASK, answer)


async def test_the_key_of_a_teacher_is_shown_to_it(
    answer: Trajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "secret")
    server = TeacherServer()
    async with asked(server, place={"api_key_env": KEY}) as teacher:
        await teacher.submit(TASK, answer)
    assert server.keys == {"Bearer secret"}


async def test_the_policy_teaches_itself_what_only_the_teacher_reads(answer: Trajectory) -> None:
    server = TeacherServer()
    async with asked(server, teacher="policy", context="Hint: {hint}") as teacher:
        await teacher.submit(TASK, answer)
        with pytest.raises(TeacherFailed, match="task t does not fill in its context"):
            await teacher.submit(TASK.model_copy(update={"data": {}}), answer)
    (body,) = server.asked
    told = len("2 + 3?\n\nHint: a sum")
    assert body["model"] == "policy"
    assert body["prompt"] == [1000 + told] * 3 + list(answer.response_token_ids)


async def test_an_answer_without_its_teachers_logprobs_is_no_reward(tmp_path: Path) -> None:
    server = TeacherServer()
    async with world(tmp_path, more_routes=server.add_to, failures_in_row=1) as cluster:
        large = TeacherConfig(url=cluster.config.router_url, model="large")
        cluster.config = cluster.config.model_copy(update={"teachers": {"large": large}})
        seen = []

        def fail(body: dict[str, Any]) -> None:
            if seen:  # the check before the run succeeds
                server.fails.append(web.Response(status=400, text="too long"))
            seen.append(body)

        server.before = fail
        status = await run_to_end(cluster, cluster.run_config(algorithm=distilled()))
        assert status.state is RunState.FAILED
        assert not cluster.trainer.batches
        assert status.failures == {"infra_error": status.ledger.failed}
        assert "teacher: status 400: too long" in status.failure_example


async def test_a_teacher_that_cannot_answer_ends_a_run_before_it_samples(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        large = TeacherConfig(url=cluster.config.router_url, model="large", timeout_s=0.2)
        cluster.config = cluster.config.model_copy(update={"teachers": {"large": large}})
        status = await run_to_end(cluster, cluster.run_config(algorithm=distilled()))
        assert status.state is RunState.FAILED
        assert "teacher large: status 404" in status.detail
        assert status.ledger.admitted == 0


async def test_an_unknown_teacher_and_another_temperature_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        request = RunRequest(config=cluster.run_config(algorithm=distilled(teacher="larger")))
        with pytest.raises(InvalidInput, match=r"distillation\.teacher.*'larger'"):
            await runs.start(request)
        hinted = distilled(teacher="policy", context="A hint.")
        with pytest.raises(ValidationError, match="single answers only"):
            cluster.run_config(algorithm=hinted, environment="external")
        with pytest.raises(ValidationError, match="temperature 1"):
            cluster.run_config(algorithm=distilled(), sampling={"temperature": 0.7})


@pytest.mark.parametrize(
    "keys",
    [
        {"kl": {"coefficient": 0.1, "where": "reward"}},
        {"overlong_limit": 9},
        {"advantage": "gae"},
        {"credit": "turn"},
        {"advantage": "reinforce_plus_plus", "gamma": 0.9},
    ],
    ids=str,
)
def test_what_shapes_rewards_is_refused_where_only_the_teacher_teaches(
    keys: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError, match="learns from no reward"):
        AlgorithmConfig.model_validate(distilled() | keys)
    assert AlgorithmConfig.model_validate(distilled(rewards=0.5) | keys)
    assert AlgorithmConfig.model_validate(distilled() | {"kl": {"coefficient": 0.1}})


@pytest.fixture
def answer(result: GroupResult) -> Trajectory:
    """The trajectory of an answer of three tokens."""
    return result.graded[0].trajectory
