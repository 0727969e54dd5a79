"""Responses that are made while no client waits for them."""

import asyncio

import pytest

from services.router.config import RouterConfig
from services.router.trajectories import lost_routers
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.shared_sessions import SharedSessions
from tests.router.conftest import MODEL
from tests.router.test_shared_sessions import CONFIG, Process

LONG = "asomething long"


async def _begun(cluster, **more):
    asked = {"model": MODEL, "input": "tell me\nsomething long", "background": True, **more}
    return await cluster.http.post(f"{cluster.url}/v1/responses", json=asked)


async def _read(cluster, name):
    return (await cluster.http.get(f"{cluster.url}/v1/responses/{name}")).json()


async def _ended(cluster, name):
    """The response, once it is no longer queued."""
    async with asyncio.timeout(300):
        while (response := await _read(cluster, name))["status"] == "queued":
            pass
    return response


async def _cancelled(cluster, name):
    return await cluster.http.post(f"{cluster.url}/v1/responses/{name}/cancel")


async def test_a_response_is_made_while_its_client_does_something_else(cluster, fault):
    await cluster.start()
    cluster.faults.append(fault("drop", after=5))
    queued = (await _begun(cluster, metadata={"task": "7"})).json()
    assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
    response = await _ended(cluster, queued["id"])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == LONG
    assert response["usage"]["output_tokens"] == len(LONG) + 1
    same = ("id", "created_at", "background", "store", "metadata")
    assert [response[name] for name in same] == [queued[name] for name in same]
    assert not cluster.faults


async def test_a_later_response_goes_on_from_one_of_the_background(cluster):
    await cluster.start()
    first = await _ended(cluster, (await _begun(cluster)).json()["id"])
    more = await _begun(cluster, input="and\nmore", previous_response_id=first["id"])
    second = await _ended(cluster, more.json()["id"])
    assert second["previous_response_id"] == first["id"]
    prompts = [body["token_ids"] for replica in cluster.replicas for body in replica.bodies]
    before, after = sorted(prompts, key=len)
    assert after[: len(before)] == before


async def test_a_session_records_what_is_said_in_the_background(cluster):
    await cluster.start()
    made = (await cluster.http.post(f"{cluster.url}/v1/sessions", json={})).json()
    asked = {"model": MODEL, "input": "hello", "background": True}
    headers = {"x-session-id": made["id"], "x-request-id": "mine"}
    answer = await cluster.http.post(f"{cluster.url}/v1/responses", json=asked, headers=headers)
    assert answer.json()["id"] == "resp_mine"
    await _ended(cluster, "resp_mine")
    kept = (await cluster.http.get(f"{cluster.url}/v1/sessions/{made['id']}")).json()
    assert len(kept["trajectories"]) == 1


async def test_a_response_that_cannot_be_made_says_why(cluster, fault):
    await cluster.start(max_retries=0)
    cluster.faults.append(fault("drop", after=2))
    queued = (await _begun(cluster)).json()
    response = await _ended(cluster, queued["id"])
    assert (response["status"], response["id"]) == ("failed", queued["id"])
    assert "given up after 1 attempts" in response["error"]["message"]
    assert response["error"]["code"] == "upstream_failed"


async def test_a_cancelled_response_stays_cancelled_and_its_work_ends(cluster, fault):
    await cluster.start(replicas=1)
    cluster.faults.append(fault("stall", after=2))
    name = (await _begun(cluster)).json()["id"]
    replica = await cluster.stalled()
    unfinished = await _begun(cluster, background=False, previous_response_id=name)
    assert unfinished.status_code == 400
    assert (await _cancelled(cluster, name)).json()["status"] == "cancelled"
    await asyncio.wait_for(replica.hung_up.wait(), 300)
    assert (await _read(cluster, name))["status"] == "cancelled"
    assert (await _cancelled(cluster, name)).json()["status"] == "cancelled"


async def test_only_what_is_being_made_can_be_cancelled(cluster):
    await cluster.start()
    done = await _ended(cluster, (await _begun(cluster)).json()["id"])
    refused = await _cancelled(cluster, done["id"])
    assert refused.status_code == 400
    assert "it is completed" in refused.text
    whole = (await _begun(cluster, background=False)).json()
    refused = await _cancelled(cluster, whole["id"])
    assert refused.status_code == 400
    assert "Cannot cancel a synchronous response." in refused.text
    assert (await _cancelled(cluster, "resp_x")).status_code == 404


async def test_a_deleted_response_is_not_made_to_its_end(cluster, fault):
    await cluster.start(replicas=1)
    cluster.faults.append(fault("stall", after=2))
    name = (await _begun(cluster)).json()["id"]
    replica = await cluster.stalled()
    await cluster.http.delete(f"{cluster.url}/v1/responses/{name}")
    await asyncio.wait_for(replica.hung_up.wait(), 300)
    assert (await cluster.http.get(f"{cluster.url}/v1/responses/{name}")).status_code == 404


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"store": False}, 400, "background"),
        ({"stream": True}, 400, "stream"),
        ({"previous_response_id": "resp_x"}, 404, "previous_response_id"),
    ],
)
async def test_what_cannot_be_made_in_the_background_is_refused(cluster, more, status, param):
    await cluster.start()
    refused = await _begun(cluster, **more)
    assert refused.status_code == status
    assert refused.json()["error"]["param"] == param


async def test_responses_in_the_background_are_bounded_and_each_has_its_own_id(cluster, fault):
    await cluster.start(replicas=1, max_open_requests=2)
    cluster.faults += [fault("stall", after=2), fault("stall", after=2)]
    first = await _begun(cluster, request_id="resp_a")
    again = await _begun(cluster, request_id="resp_a")
    assert (first.status_code, again.status_code) == (200, 400)
    assert again.json()["error"]["param"] == "request_id"
    await cluster.stalled()
    second, third = await _begun(cluster), await _begun(cluster)
    assert (second.status_code, third.status_code) == (200, 429)


async def test_what_a_router_that_died_was_making_has_failed(cluster, fault, monkeypatch):
    monkeypatch.setattr(lost_routers, "LOOK_S", 0.0)
    process = Process()
    await cluster.start(replicas=1, sessions=SharedSessions(CONFIG, process, "a"))
    cluster.faults.append(fault("stall", after=2))
    name = (await _begun(cluster)).json()["id"]
    await cluster.stalled()
    process.routers = {"b"}
    response = await _ended(cluster, name)
    assert (response["status"], response["error"]["code"]) == ("failed", "router_lost")
    assert response["id"] == name


async def test_what_a_router_that_stops_was_making_has_failed(cluster, fault):
    sessions = Sessions(RouterConfig())
    await cluster.start(replicas=1, sessions=sessions)
    cluster.faults.append(fault("stall", after=2))
    name = (await _begun(cluster)).json()["id"]
    await cluster.stalled()
    await cluster.close()
    response = await sessions.response(name)
    assert (response["status"], response["error"]["code"]) == ("failed", "router_stopped")
