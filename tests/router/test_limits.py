"""Leases, bounds, deadlines and clients that leave."""

import asyncio
import contextlib
import json
import time
from types import SimpleNamespace

import httpx
import openai
import pytest

from services.protocol.router import CHOICE_HEADER, REPLICA_HEADER
from services.protocol.weights.weight_bus import ReplicaState
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.http.answer_endpoint import parsed
from services.router.placement.reservation import ReservationRequest
from services.router.request.needs import Needs
from services.router.upstream.replicas import Attempts

ASK = [{"role": "user", "content": "hello"}]


def _chat(cluster, **extra):
    return cluster.client.chat.completions.create(model="test-model", messages=ASK, **extra)


async def test_no_token_without_a_lease(cluster):
    """Live members without a lease get nothing, however long the client waits."""
    await cluster.start(leased=False, lease_wait_s=0.2)
    with pytest.raises(openai.InternalServerError, match="no replica held a lease") as refusal:
        await _chat(cluster)
    assert refusal.value.status_code == 503
    assert refusal.value.response.headers["retry-after"] == "1"
    assert not any(replica.bodies for replica in cluster.replicas)
    await cluster.bus.put(cluster.replicas[1].member(leased=True))
    for _ in range(4):
        await _chat(cluster)
    assert not cluster.replicas[0].bodies
    assert len(cluster.replicas[1].bodies) == 4


async def test_a_request_waits_for_the_first_lease(cluster):
    await cluster.start(leased=False, lease_wait_s=10)
    running = asyncio.create_task(_chat(cluster))
    await asyncio.wait({running}, timeout=0.1)
    assert not running.done()
    await cluster.bus.put(cluster.replicas[0].member(leased=True))
    answer = await asyncio.wait_for(running, 300)
    assert answer.choices[0].message.content == "ahello"


async def test_leases_end_when_the_bus_falls_silent(cluster):
    await cluster.start(lease_s=0.4, lease_wait_s=0.1)
    await _chat(cluster)
    cluster.bus.talking.clear()
    await cluster.until_leased()
    with pytest.raises(openai.InternalServerError, match="no replica held a lease"):
        await _chat(cluster)
    cluster.bus.talking.set()
    await cluster.bus.put()
    await cluster.until_leased("replica-0", "replica-1")
    await _chat(cluster)


async def test_a_lease_lost_between_choice_and_sending_is_respected(cluster):
    """The chosen replica gets no request any more."""
    await cluster.start()
    replicas = {replica.replica_id: replica for replica in cluster.replicas}
    reserve, lost = cluster.reservations.reserve, []

    async def losing(*what, **how):
        reservation = await reserve(*what, **how)
        if not lost:
            lost.append(reservation.replica_id)
            member = replicas[reservation.replica_id].member(leased=False)
            cluster.reservations.membership.members[reservation.replica_id] = member
        return reservation

    cluster.reservations.reserve = losing
    await _chat(cluster)
    assert [len(replicas.pop(lost[0]).bodies), len(replicas.popitem()[1].bodies)] == [0, 1]


async def test_a_lost_lease_is_no_failure_of_the_replica(cluster):
    """A replica that stages weights again and again is not ejected for it."""
    await cluster.start(eject_after=1, eject_s=60.0)
    reservations = cluster.reservations
    for _ in range(3):
        reservation = await reservations.reserve(
            ReservationRequest(model=None, session=None, weight=1)
        )
        reservation.lose()
        with pytest.raises(UpstreamBroken, match="lease_lost"), reservation:
            reservation.check_lease()
        assert reservations.chooser.health(reservation.replica_id).admits(time.monotonic())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_upstream_request(cluster, fault, stream):
    await cluster.start(replicas=1)
    cluster.faults.append(fault("stall", 2))
    body = {"model": "test-model", "messages": ASK, "stream": stream}
    url = f"{cluster.url}/v1/chat/completions"
    request = asyncio.create_task(_read_some(cluster.http, url, body))
    replica = await cluster.stalled()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await asyncio.wait_for(replica.hung_up.wait(), 300)
    await _until(lambda: cluster.reservations.chooser.in_flight("replica-0") == 0)


async def _read_some(client, url, body):
    async with client.stream("POST", url, json=body, timeout=300) as got:
        async for _ in got.aiter_lines():
            pass


async def _until(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110  these conditions have no event
            await asyncio.sleep(0.005)


async def test_serves_way_of_disconnecting_is_cancellation(cluster, fault):
    """Serve cancels the ASGI call instead of sending a disconnect message."""
    await cluster.start(replicas=1)
    cluster.faults.append(fault("stall", 2))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=cluster.app), base_url="http://router"
    ) as client:
        body = {"model": "test-model", "messages": ASK}
        request = asyncio.create_task(client.post("/v1/chat/completions", json=body, timeout=300))
        replica = await cluster.stalled()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await asyncio.wait_for(replica.hung_up.wait(), 300)
    assert cluster.reservations.chooser.in_flight("replica-0") == 0


async def test_more_open_requests_than_allowed_are_refused_with_retry_after(cluster, fault):
    await cluster.start(max_open_requests=1)
    cluster.faults.append(fault("stall", 2))
    first = asyncio.create_task(_chat(cluster))
    await cluster.stalled()
    with pytest.raises(openai.RateLimitError) as refusal:
        await _chat(cluster)
    assert refusal.value.response.headers["retry-after"] == "1"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await _until(lambda: not cluster.reservations._open)
    assert (await _chat(cluster)).choices[0].message.content == "ahello"


async def test_nothing_hangs_when_every_replica_stalls(cluster, fault):
    await cluster.start(first_token_s=0.1, between_tokens_s=0.1, max_retries=2, eject_after=100)
    cluster.faults.extend([fault("stall", 1), *[fault("stall", 0)] * 2])
    async with asyncio.timeout(300):
        with pytest.raises(openai.InternalServerError, match="stalled"):
            await _chat(cluster)
    # On a busy machine an attempt can end before its replica has begun with it.
    begun = [replica for replica in cluster.replicas if replica.stalled.is_set()]
    assert begun
    for replica in begun:
        await asyncio.wait_for(replica.hung_up.wait(), 300)


async def test_a_sessions_name_is_bounded(cluster):
    await cluster.start(replicas=1)
    await _chat(cluster, extra_headers={"x-session-id": "s" * 128})
    with pytest.raises(openai.BadRequestError, match="longer than 128") as refusal:
        await _chat(cluster, extra_headers={"x-session-id": "s" * 129})
    assert refusal.value.param == "x-session-id"


async def test_the_pause_before_the_only_replica_is_tried_again_is_bounded(cluster, monkeypatch):
    await cluster.start(replicas=1, retry_pause_s=1.0, max_retries=5000, eject_after=10_000)
    await cluster.until_leased("replica-0")
    attempts, pauses = Attempts(RouterConfig(max_retries=5000), cluster.reservations), []
    with await attempts.reserve(None, session=None, weight=1) as reservation:
        for _ in range(3000):
            attempts.note(UpstreamBroken("eof"), reservation)

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("services.router.upstream.replicas.asyncio", SimpleNamespace(sleep=sleep))
    with await attempts.reserve(None, session=None, weight=1):
        assert pauses == [10.0]


@pytest.mark.parametrize("wanted", [5, 0, -1, "5", 5.0])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_more_choices_than_allowed_are_refused_before_any_work(cluster, path, wanted):
    """Also those that a replica would read as a number."""
    await cluster.start(max_choices=4)
    body = {"model": "test-model", "prompt": "x", "messages": ASK, "n": wanted}
    got = await cluster.http.post(f"{cluster.url}/v1/{path}", json=body)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "n"
    assert "from 1 to 4" in got.json()["error"]["message"]
    assert not any(replica.bodies for replica in cluster.replicas)


async def test_choices_of_all_prompts_are_bounded_together(cluster):
    await cluster.start(replicas=1, max_choices=4)
    url = f"{cluster.url}/v1/completions"
    for prompts, status in ((2, 200), (3, 400)):
        body = {"model": "test-model", "prompt": ["x"] * prompts, "n": 2}
        got = await cluster.http.post(url, json=body)
        assert got.status_code == status
    assert got.json()["error"]["param"] == "prompt"
    assert "at most 4, got 6" in got.json()["error"]["message"]
    assert len(cluster.replicas[0].bodies) == 1


async def test_as_many_choices_as_allowed_are_served(cluster):
    await cluster.start(max_choices=4)
    assert len((await _chat(cluster, n=4)).choices) == 4


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"[1]", 400), (b'"x"', 400), (b"x" * 2000, 413)],
)
async def test_a_bad_body_is_one_clear_error(cluster, content, status):
    await cluster.start(replicas=0, max_body_bytes=1024)
    got = await cluster.http.post(f"{cluster.url}/v1/completions", content=content)
    assert got.status_code == status
    assert got.json()["error"]["code"] == status


@pytest.mark.parametrize(("depth", "status"), [(400, 200), (600, 400), (5000, 400)])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
async def test_a_body_is_served_or_refused_however_deep_it_is(cluster, depth, status, brackets):
    await cluster.start(replicas=1)
    begin, end = brackets
    deep = begin * depth + "1" + end * depth
    ask = '[{"role": "user", "content": "hello"}]'
    body = f'{{"model": "test-model", "metadata": {deep}, "messages": {ask}}}'
    got = await cluster.http.post(f"{cluster.url}/v1/chat/completions", content=body)
    assert got.status_code == status, got.text
    assert ("nested more than" in got.text) == (status == 400)


def test_what_could_be_read_can_be_looked_at_and_sent():
    """Also right at the depth that Python's own parser refuses."""
    for depth in range(400, 1000):
        raw = b'{"messages": [{"content": ' + b"[" * depth + b"]" * depth + b"}]}"
        with contextlib.suppress(RequestFailed):
            body = parsed(raw)
            _called_by(50, lambda body=body: Needs.of(body, {}, flow="") and json.dumps(body))


def _called_by(callers, function):
    return _called_by(callers - 1, function) if callers else function()


async def test_a_session_stays_and_moves_only_when_it_must(cluster):
    await cluster.start()

    async def call():
        raw = await cluster.client.chat.completions.with_raw_response.create(
            model="test-model", messages=ASK, extra_headers={"x-session-id": "episode-7"}
        )
        return raw.headers[REPLICA_HEADER], raw.headers[CHOICE_HEADER]

    home, kind = await call()
    assert kind == "new"
    assert [await call() for _ in range(3)] == [(home, "hit")] * 3
    (gone,) = [replica for replica in cluster.replicas if replica.replica_id == home]
    await cluster.bus.put(gone.member(state=ReplicaState.SUSPECT, leased=False))
    (stays,) = {replica.replica_id for replica in cluster.replicas} - {home}
    await cluster.until_leased(stays)
    other, kind = await call()
    assert (other, kind) == (stays, "moved")
    await cluster.bus.put(gone.member())
    await cluster.until_leased(home, stays)
    assert await call() == (other, "hit")
