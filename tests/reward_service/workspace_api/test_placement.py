"""Workspaces on several replicas: a request comes to any of them and reaches its owner."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from services.reward_service.workspace_api.peer_listener import PREFIX
from services.reward_service.workspace_api.replica_table import (
    ReplicaAddress,
    ReplicaTable,
    replica_of,
)
from tests.reward_service.workspace_api.conftest import Store, cluster, opened, until


async def test_every_replica_leads_to_the_one_that_has_the_workspace() -> None:
    async with cluster() as made:
        one, two = await made.start(), await made.start()
        path = await opened(one.http, files={"a": "1"})
        ran = await two.http.post(f"{path}/exec", json={"shell": "cat a -", "stdin": "2"})
        assert ran.json()["stdout"] == "12"
        streamed = await two.http.post(f"{path}/exec", json={"shell": "echo x", "stream": True})
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert "x\\n" in streamed.text
        content = bytes(range(256)) * 100
        put = await two.http.put(f"{path}/files/b%20c%C3%A9?mode=755", content=content)
        assert put.json()["path"] == "b cé"
        assert (await two.http.get(f"{path}/files/b%20c%C3%A9")).content == content
        assert (await two.http.get(path)).json()["id"] == path.rpartition("/")[2]
        forks = (await two.http.post(f"{path}/fork", json={"n": 2})).json()
        assert {replica_of(fork["id"]) for fork in forks} == {one.name}
        kept = (await two.http.post(f"{path}/snapshot")).json()["snapshot"]
        again = await opened(two.http, snapshot=kept)
        assert replica_of(again.rpartition("/")[2]) == one.name, "where its snapshot is"
        for asked in (one, two):
            assert len((await asked.http.get(PREFIX)).json()) == 4
        assert (await two.http.delete(f"{PREFIX}/snapshots/{kept}")).status_code == 200
        assert (await two.http.delete(path)).status_code == 200
        assert (await one.http.get(path)).json()["error"]["reason"] == "closed"


async def test_a_key_has_its_workspaces_on_every_replica_and_no_others() -> None:
    async with cluster() as made:
        one, two = await made.start(), await made.start()
        answer = await one.http.post(PREFIX, json={}, headers={"x-key": "alice"})
        path = f"{PREFIX}/{answer.json()['id']}"
        for key, status in (("alice", 200), ("bob", 404), ("", 404)):
            assert (await two.http.get(path, headers={"x-key": key})).status_code == status
        spoofed = {"x-key": "bob", "x-millrace-owner": "alice", "x-millrace-secret": "guess"}
        assert (await two.http.get(path, headers=spoofed)).status_code == 404
        (listed,) = (await two.http.get(PREFIX, headers={"x-key": "alice"})).json()
        assert path.endswith(listed["id"])


async def test_a_full_replica_opens_at_another_and_all_full_say_when_to_come_back() -> None:
    async with cluster() as made:
        one, two = await made.start(max_open=1), await made.start(max_open=1)
        paths = [await opened(one.http), await opened(one.http)]
        assert {replica_of(path.rpartition("/")[2]) for path in paths} == {one.name, two.name}
        full = await one.http.post(PREFIX, json={})
        assert full.status_code == 429
        assert full.json()["error"]["type"] == "quota_full"
        assert int(full.headers["retry-after"]) >= 1
        made.store.away = True
        assert (await one.http.post(PREFIX, json={})).status_code == 429
        made.store.away = False


async def test_workspaces_of_a_replica_that_is_gone_are_said_to_be_lost() -> None:
    async with cluster() as made:
        one, two = await made.start(), await made.start()
        path = await opened(one.http)
        assert (await two.http.get(path)).status_code == 200
        await one.die()
        for _ in range(2):
            gone = await two.http.post(f"{path}/exec", json={"shell": "id"})
            error = gone.json()["error"]
            assert (gone.status_code, error["reason"], error["type"]) == (
                410,
                "lost",
                "workspace_gone",
            )
        assert one.name not in made.store.texts
        never = await two.http.get(f"{PREFIX}/zzzz-{'0' * 32}")
        assert (never.status_code, never.json()["error"]["reason"]) == (410, "lost")
        assert (await two.http.get(f"{PREFIX}/no-such")).status_code == 404
        assert (await two.http.get(PREFIX)).json() == []


async def test_a_stream_of_another_replica_ends_when_that_dies() -> None:
    async with cluster() as made:
        one, two = await made.start(), await made.start()
        path = await opened(one.http)
        body = {"shell": "echo begun; sleep 600", "wall_s": 900, "stream": True}
        call = asyncio.create_task(two.http.post(f"{path}/exec", json=body))
        workspace = one.workspaces.find(path.rpartition("/")[2], owner="")
        await until(lambda: workspace.calls == 1)
        await one.die()
        async with asyncio.timeout(120):
            await asyncio.wait([call])
        assert not call.exception() or isinstance(call.exception(), AssertionError)


async def test_a_client_that_leaves_ends_the_call_on_the_other_replica() -> None:
    async with cluster() as made:
        one, two = await made.start(), await made.start()
        path = await opened(one.http)
        body = {"shell": "sleep 600", "wall_s": 900}
        call = asyncio.create_task(two.http.post(f"{path}/exec", json=body))
        workspace = one.workspaces.find(path.rpartition("/")[2], owner="")
        await until(lambda: workspace.calls == 1)
        call.cancel()
        await asyncio.wait([call])
        after = await two.http.post(f"{path}/exec", json={"shell": "echo next"})
        assert after.json()["stdout"] == "next\n"


async def test_the_listener_is_for_replicas_alone() -> None:
    async with cluster() as made:
        one = await made.start()
        address = json.loads(made.store.texts[one.name])
        async with httpx.AsyncClient(trust_env=False) as http:
            for headers in ({}, {"x-millrace-secret": "guess"}):
                answer = await http.get(f"{address['url']}{PREFIX}", headers=headers)
                assert answer.status_code == 403
                assert address["secret"] not in answer.text
        assert address["secret"] not in repr(ReplicaAddress(**address))


class Slow(Store):
    """A store whose reads are counted."""

    reads = 0

    async def read(self) -> dict[str, str]:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().read()


async def test_a_replica_that_does_not_answer_is_lost_only_where_serve_has_it_no_more() -> None:
    store, running = Slow(), {"other"}

    async def listed() -> Any:
        return running

    own = ReplicaAddress(name="own", url="http://x:1", secret="s")
    other = ReplicaAddress(name="other", url="http://x:2", secret="t")
    table = ReplicaTable(own, store, listed)
    await table.register()
    await ReplicaTable(other, store, listed).register()
    assert await table.find("other") == other
    assert not await table.lost(other, refused=False), "Serve has it: it may come back"
    running = None  # type: ignore[assignment]
    assert not await table.lost(other, refused=False), "Serve does not say"
    running = set()
    assert await table.lost(other, refused=False)
    assert await table.find("other") is None
    assert await table.find("own") == own
    store.reads = 0
    await asyncio.gather(*(table.find("nobody") for _ in range(50)))
    assert store.reads <= 2, "callers share a read"


@pytest.mark.parametrize(
    "name", ["", "a", "-" + "0" * 32, "A-" + "0" * 32, "a-" + "g" * 32, "a-0/x"]
)
def test_an_id_that_no_replica_gave_is_nobodys(name: str) -> None:
    assert replica_of(name) is None
