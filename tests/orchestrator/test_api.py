"""`/v1/runs` over HTTP, below its route prefix as Serve mounts it."""

import asyncio
import gc
import json
import sqlite3
import weakref
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from services.disk import replace_file
from services.ledger.ledger_file import LedgerTaken
from services.observability.metrics import RunMetrics
from services.orchestrator.api import http_api
from services.orchestrator.lifecycle import run as run_module
from services.orchestrator.lifecycle.run import Run
from services.orchestrator.lifecycle.runs import Runs
from services.protocol.run.orchestrator import RunRequest
from services.protocol.run.profile import RankProfile
from tests.orchestrator.fakes import World, world

pytestmark = pytest.mark.usefixtures("no_drawing")


TASK = {
    "task_id": "password",
    "messages": [{"role": "user", "content": "password"}],
    "split": "train",
    "grader": {
        "kind": "python_function",
        "entry_point": "f",
        "tests": [{"args": ["password"], "expected": "password"}],
    },
}


@asynccontextmanager
async def serving(folder: Path):
    async with world(folder) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        transport = httpx.ASGITransport(http_api(runs), root_path="/v1/runs")
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            try:
                yield cluster, http
            finally:
                await runs.close()


def body(cluster: World, **changes) -> dict:
    return {"config": cluster.run_config().model_dump(mode="json") | changes}


async def wait_for(http: httpx.AsyncClient, run_id: str, condition: Callable[[dict], bool]) -> dict:
    async with asyncio.timeout(300):
        while True:
            status = (await http.get(f"/v1/runs/{run_id}")).json()
            if condition(status):
                return status
            await asyncio.sleep(0.01)


async def wait_for_state(http: httpx.AsyncClient, run_id: str, state: str) -> dict:
    return await wait_for(http, run_id, lambda status: status["state"] == state)


async def test_a_run_is_started_followed_and_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, http):
        answer = await http.post("/v1/runs", json=body(cluster))
        assert answer.status_code == 201, answer.text
        run_id = answer.json()["run_id"]
        assert run_id.startswith("test-")
        status = await wait_for_state(http, run_id, "finished")
        assert status["summary"]["train_steps"] == 5
        listing = (await http.get("/v1/runs")).json()
        assert [run["run_id"] for run in listing] == [run_id]
        shown = (await http.get(f"/v1/runs/{run_id}/trajectories?limit=3")).json()
        assert len(shown) == 3
        assert shown[-1]["step"] == 5


async def test_an_order_for_a_run_that_another_has_taken_over_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: Run) -> None:
        raise LedgerTaken("the ledger has another writer: host-b.")

    monkeypatch.setattr(Run, "pause", taken)
    async with serving(tmp_path) as (cluster, http):
        cluster.trainer.hold = asyncio.Event()
        run_id = (await http.post("/v1/runs", json=body(cluster))).json()["run_id"]
        answer = await http.post(f"/v1/runs/{run_id}/pause")
        assert answer.status_code == 409
        error = answer.json()["error"]
        assert "the ledger has another writer: host-b." in error["message"]
        assert "the orchestrator that has taken the run over" in error["fix"]


async def test_a_second_run_is_refused_and_told_how_to_end_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, http):
        cluster.trainer.hold = asyncio.Event()
        run_id = (await http.post("/v1/runs", json=body(cluster))).json()["run_id"]
        before = set(cluster.run_root.iterdir())
        second = await http.post("/v1/runs", json=body(cluster))
        assert second.status_code == 409
        error = second.json()["error"]
        assert (error["param"], error["value"]) == ("run", run_id)
        said = "Another run is in progress; this cluster trains one at a time. Wait for it or end"
        assert error["fix"] == error["message"] == f"{said} it with `millrace stop {run_id}`."
        assert set(cluster.run_root.iterdir()) == before, "nothing is half-started"
        cluster.trainer.hold.set()
        stopped = await http.post(f"/v1/runs/{run_id}/stop")
        assert stopped.json()["state"] in ("stopped", "finished")
        third = await http.post("/v1/runs", json=body(cluster))
        assert third.status_code == 201


@pytest.mark.parametrize(
    ("changes", "field", "part"),
    [
        ({"stepz": 3}, "run: config.stepz", "No such key"),
        ({"steps": 0}, "run: config.steps", "greater than or equal to 1"),
        ({"schedule": {"preset": "fast"}}, "run: config.schedule.preset", "sync"),
        ({"sampling": {"temperature": 2.5}}, "run: config.sampling.temperature", "equal to 2"),
        (
            {"sampling": {"max_tokens": 4096}, "rollout_timeout_s": 60.0},
            "sampling.max_tokens",
            "max_model_len",
        ),
        ({"algorithm": {"temperature": 1.0}}, "run: config.algorithm.temperature", "No such key"),
        ({"model": "other"}, "model", "tiny"),
        ({"task_file": "tasks.jsonl"}, "task_file", "absolute"),
        ({"task_file": "/nowhere/tasks.jsonl"}, "task file", "cannot be read"),
        ({"run_root": "/proc/nowhere"}, "run_root", "can be written"),
        ({"run_root": "/" + "a" * 300}, "run_root", "No file has such a name"),
        ({"run_root": "/nowhere" + "/a" * 2030}, "run_root", "can be written"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bad_input_gets_one_clear_message(
    tmp_path: Path, changes: dict, field: str, part: str
) -> None:
    async with serving(tmp_path) as (cluster, http):
        cluster.bus.publish_version(1)
        answer = await http.post("/v1/runs", json=body(cluster, **changes))
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code", "value", "fix"}
        assert error["param"] == field
        assert part in error["fix"]
        assert (await http.get("/v1/runs")).json() == []
        assert not cluster.run_root.exists()


async def test_a_body_that_is_not_json_gets_the_same_shape(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, http):
        answer = await http.post("/v1/runs", content=b"{")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "body"


@pytest.mark.parametrize(
    "content",
    [
        "password",
        '"password"',
        '{"password": "password"}',
        '{"task_id": ["password"], "messages": "password", "split": "password", "grader": 1}',
        json.dumps(TASK | {"password": 1}),
        json.dumps(TASK | {"split": "password"}),
        json.dumps(TASK | {"grader": {"kind": "password"}}),
        json.dumps(TASK | {"grader": TASK["grader"] | {"password": 1}}),
        f"{json.dumps(TASK)}\n{json.dumps(TASK)}",
    ],
)
async def test_a_file_that_holds_no_tasks_is_refused_without_telling_what_it_holds(
    tmp_path: Path, content: str
) -> None:
    async with serving(tmp_path) as (cluster, http):
        secret = tmp_path / "secret"
        secret.write_text(content)
        answer = await http.post("/v1/runs", json=body(cluster, task_file=str(secret)))
        assert answer.status_code == 400
        assert f"{secret}, line {content.count(chr(10)) + 1}" in answer.json()["error"]["param"]
        assert "password" not in answer.text


async def test_a_run_that_cannot_be_opened_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        path.write_text("half a ledger")
        raise sqlite3.OperationalError("disk I/O error")

    async with serving(tmp_path) as (cluster, http):
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "Ledger", broken)
            answer = await http.post("/v1/runs", json=body(cluster))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "run_root"
        assert "disk I/O error" in answer.json()["error"]["fix"]
        assert list(cluster.run_root.iterdir()) == []
        assert (await http.get("/v1/runs")).json() == []
        assert (await http.post("/v1/runs", json=body(cluster))).status_code == 201


async def test_of_an_ended_run_only_its_last_status_is_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        started = await runs.start(RunRequest(config=cluster.run_config(steps=1)))
        alive = weakref.ref(runs.get(started.run_id))
        assert isinstance(alive(), Run)
        async with asyncio.timeout(300):
            final = await runs.ended(started.run_id)
        gc.collect()
        assert alive() is None
        assert runs.get(started.run_id).status() == final
        assert runs.list() == [final]


async def test_the_newest_of_the_runs_that_are_over_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.orchestrator.lifecycle.runs._MOST_ENDED", 1)
    async with world(tmp_path) as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        for _ in range(2):
            started = await runs.start(RunRequest(config=cluster.run_config(steps=1)))
            async with asyncio.timeout(300):
                final = await runs.ended(started.run_id)
        assert runs.list() == [final]


async def test_an_unknown_run_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, http):
        for answer in (await http.get("/v1/runs/x"), await http.post("/v1/runs/x/stop")):
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert (error["param"], error["value"]) == ("run_id", "x")
            assert error["fix"].startswith("No such run.")
            assert "`millrace status`" in error["fix"]


async def test_only_the_same_run_can_be_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, http):
        for unknown in ("test-1", "a" * 5000, "../runs"):
            answer = await http.post("/v1/runs", json=body(cluster) | {"resume": unknown})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "resume"
        run_id = (await http.post("/v1/runs", json=body(cluster))).json()["run_id"]
        await wait_for_state(http, run_id, "finished")
        answer = await http.post("/v1/runs", json=body(cluster, seed=9) | {"resume": run_id})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "seed"
        answer = await http.post("/v1/runs", json=body(cluster, steps=7) | {"resume": run_id})
        assert answer.status_code == 201
        assert (await wait_for_state(http, run_id, "finished"))["step"] == 7


async def test_a_paused_run_begins_nothing_keeps_what_it_has_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, dict[str, str]]] = []
    monkeypatch.setattr(RunMetrics.paused, "set", lambda value, tags: told.append((value, tags)))
    async with serving(tmp_path) as (cluster, http):
        cluster.trainer.hold = asyncio.Event()
        run_id = (await http.post("/v1/runs", json=body(cluster))).json()["run_id"]
        async with asyncio.timeout(300):
            await cluster.trainer.entered.wait()  # the first step is in progress
        paused = (await http.post(f"/v1/runs/{run_id}/pause")).json()
        assert paused["state"] == "paused"
        cluster.trainer.hold.set()
        status = await wait_for(
            http, run_id, lambda s: s["step"] == 1 and s["detail"].startswith("paused")
        )
        admitted = status["ledger"]["admitted"]
        saved = (await http.post(f"/v1/runs/{run_id}/checkpoint")).json()
        assert saved["step"] == 1
        assert [step for step, _ in next(iter(cluster.trainer.checkpoints.values()))] == [1]
        status = (await http.get(f"/v1/runs/{run_id}")).json()
        assert (status["step"], status["ledger"]["admitted"]) == (1, admitted)
        await http.post(f"/v1/runs/{run_id}/unpause")
        assert told == [(1.0, {"run": run_id}), (0.0, {"run": run_id})], "silences the alert"
        status = await wait_for_state(http, run_id, "finished")
        assert (status["step"], status["ledger"]["trained"]) == (
            5,
            20 - status["ledger"]["filtered"],
        )


async def test_a_profile_is_asked_of_the_trainer_and_shows_the_ranks_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (cluster, http):
        cluster.trainer.hold = asyncio.Event()
        run_id = (await http.post("/v1/runs", json=body(cluster))).json()["run_id"]
        async with asyncio.timeout(300):
            await cluster.trainer.entered.wait()
        path = f"/v1/runs/{run_id}/profile"
        asked = await http.post(path, json={"steps": 3, "ranks": [0, 1]})
        assert asked.status_code == 202, asked.text
        (request,) = cluster.trainer.profiles
        assert (request.run_id, request.steps, request.ranks) == (run_id, 3, (0, 1))
        name = asked.json()["name"]
        assert request.folder.endswith(f"{run_id}/profiles/{name}")
        found = f"/v1/runs/{run_id}/profiles/{name}"
        assert (await http.get(found)).json()["ranks"] == []
        times = {"phases": {"optimizer": 1.0}, "kinds": {"matmul": 0.5}, "operators": {}}
        done = RankProfile(rank=1, last_step=3, steps=3, seconds=2.0, recorded_seconds=2.0, **times)
        replace_file(Path(request.folder) / "rank1.json", done.model_dump_json().encode())
        assert (await http.get(found)).json()["ranks"] == [done.model_dump(mode="json")]
        for wrong, field in (({"ranks": [2]}, "ranks"), ({"steps": 0}, "profile: steps")):
            answer = await http.post(path, json=wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        again = (await http.post(path, json={})).json()["name"]
        assert (again, name) == ("step-00000001-3", "step-00000001-1")
        monkeypatch.setattr(run_module, "free_bytes", lambda _: 5 << 20)
        answer = await http.post(path, json={})
        assert answer.status_code == 400
        assert "5 MiB are free, traces may need 1024" in answer.json()["error"]["fix"]
        cluster.trainer.hold.set()


async def test_a_checkpoint_that_the_trainer_does_not_write_is_no_success(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, http):
        rarely = body(cluster, steps=500, checkpoint={"every": 400})
        run_id = (await http.post("/v1/runs", json=rarely)).json()["run_id"]
        await wait_for(http, run_id, lambda status: status["step"] > 0)
        cluster.trainer.ready = False
        answer = await http.post(f"/v1/runs/{run_id}/checkpoint")
        assert answer.status_code == 503, answer.text
        assert "was not written" in answer.json()["error"]["message"]


async def test_a_run_that_is_over_cannot_be_paused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, http):
        run_id = (await http.post("/v1/runs", json=body(cluster, steps=1))).json()["run_id"]
        await wait_for_state(http, run_id, "finished")
        for action in ("pause", "unpause", "checkpoint"):
            answer = await http.post(f"/v1/runs/{run_id}/{action}")
            assert (answer.status_code, answer.json()["error"]["value"]) == (400, run_id)
