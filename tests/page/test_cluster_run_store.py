"""The runs of a cluster, from an orchestrator and a router that answer over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.page.cluster_run_store import ClusterRunStore
from services.page.config import PageConfig
from services.page.run_store import NoSuchRun
from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState

KEY = "a-key-of-some-length"
MEMBER = Member(
    replica_id="a",
    address="http://127.0.0.1:1",
    state=ReplicaState.LIVE,
    committed_version=4,
    leased=True,
    model="m",
    max_model_len=64,
    pid=1,
)


class Bus:
    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        return MemberTable(
            bus_id="b",
            revision=1,
            newest_version=5,
            lease_s=1.0,
            members=(MEMBER,),
            trainer_ready=True,
            pushes=9,
        )


@pytest.fixture
async def cluster(run_dir: Path) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    runs = [
        {"run_id": "test-1", "run_dir": str(run_dir), "state": "training", "detail": "step 5"},
        {"run_id": "gone", "run_dir": str(run_dir / "gone"), "state": "failed", "detail": ""},
    ]

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({}, status=401)
        load = {"in_flight": 3, "by_replica": {"a": 3}}
        return web.json_response(runs if request.path == "/v1/runs" else load)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    yield f"http://127.0.0.1:{server.port}", runs
    await server.close()


async def heard(store: ClusterRunStore, until: Any) -> None:
    task = asyncio.create_task(store.follow())
    try:
        async with asyncio.timeout(300):
            while not until(store.live()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_runs_replicas_and_load_are_those_of_the_cluster(cluster, monkeypatch) -> None:
    monkeypatch.setenv("PAGE_KEY", KEY)
    store = ClusterRunStore(PageConfig(router_key_env="PAGE_KEY", look_s=0.01), cluster[0], Bus())
    await heard(store, lambda live: not live["problem"])
    assert [run["run_id"] for run in store.runs()] == ["gone", "test-1"]
    assert store.status("test-1")["detail"] == "step 5"
    assert store.open("test-1").overview()["step"] == 4
    live = store.live()
    (member,) = live["members"]
    assert (member["replica_id"], member["leased"], member["committed_version"]) == ("a", True, 4)
    assert (live["newest_version"], live["load"]["by_replica"]) == (5, {"a": 3})
    with pytest.raises(NoSuchRun):
        store.open("../test-1")
    with pytest.raises(InvalidInput, match="run_dir"):
        store.open("gone")


async def test_a_cluster_that_refuses_is_named(cluster) -> None:
    store = ClusterRunStore(PageConfig(look_s=0.01), cluster[0], Bus())
    await heard(store, lambda live: "401" in live["problem"])
    assert store.runs() == []


async def test_who_answers_is_shown_whatever_another_says(cluster, monkeypatch) -> None:
    monkeypatch.setenv("PAGE_KEY", KEY)
    cluster[1][:] = ["no status of a run"]
    store = ClusterRunStore(PageConfig(router_key_env="PAGE_KEY", look_s=0.01), cluster[0], Bus())
    await heard(store, lambda live: live["members"])
    await heard(store, lambda live: "indices" in live["problem"])
    assert store.live()["load"]["in_flight"] == 3


def test_a_key_that_is_not_set_is_refused_at_the_start(monkeypatch) -> None:
    monkeypatch.delenv("PAGE_KEY", raising=False)
    with pytest.raises(InvalidInput, match="PAGE_KEY"):
        ClusterRunStore(PageConfig(router_key_env="PAGE_KEY"), "http://127.0.0.1:1", Bus())
