"""Waiting for a replica: because all are full, or for a policy version."""

import asyncio
from dataclasses import replace

import openai
import pytest

from services.protocol.router import MIN_VERSION_HEADER, PRIORITY_HEADER, REPLICA_HEADER
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.placement.reservation import ReservationRequest
from services.router.placement.reservation_queue import ReservationQueue
from services.router.request.needs import Needs

ASK = [{"role": "user", "content": "hello"}]


def _chat(cluster, content="hello", **headers):
    return asyncio.create_task(
        cluster.client.chat.completions.create(
            model="test-model",
            messages=[{"role": "user", "content": content}],
            extra_headers=headers,
        )
    )


async def _until(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110  these conditions have no event
            await asyncio.sleep(0.002)


async def _queued(cluster, count):
    await _until(lambda: len(cluster.reservations.queue) == count)


async def _full(cluster, fault, **settings):
    """A cluster of one replica that runs one sequence, which has stalled."""
    await cluster.start(replicas=1, max_sequences=1, min_sequences=1, **settings)
    cluster.faults.append(fault("stall", 2))
    running = _chat(cluster)
    await cluster.stalled()
    return running


async def _end(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _asked(cluster):
    """What replicas were asked, in order; the last line of each prompt."""
    return [
        bytes(body["token_ids"][:-1]).decode().rsplit("\n", 1)[-1]
        for body in cluster.replicas[0].bodies
    ]


async def test_requests_wait_while_replicas_are_full_and_flows_take_turns(cluster, fault):
    running = await _full(cluster, fault)
    waiting = []
    for number, (flow, priority) in enumerate([("a", 0), ("a", 0), ("b", 0), ("c", -1)]):
        headers = {"x-session-id": flow, PRIORITY_HEADER: str(priority)}
        waiting.append(_chat(cluster, f"{flow}{number}", **headers))
        await _queued(cluster, number + 1)
    await _end(running)
    async with asyncio.timeout(300):
        await asyncio.gather(*waiting)
    assert _asked(cluster) == ["hello", "c3", "a0", "b2", "a1"]
    await _until(lambda: not cluster.reservations.chooser.counts)
    assert not len(cluster.reservations.queue)


async def test_a_full_queue_is_told_at_once(cluster, fault):
    running = await _full(cluster, fault, max_queued_requests=1)
    waiting = _chat(cluster)
    await _queued(cluster, 1)
    with pytest.raises(openai.RateLimitError, match="1 requests wait already") as refusal:
        await _chat(cluster)
    assert refusal.value.type == "queue_full"
    assert refusal.value.response.headers["retry-after"] == "1"
    await _end(running, waiting)


async def test_those_who_wait_in_vain_leave_the_others_their_room(cluster, fault):
    running = await _full(cluster, fault, max_queued_requests=2)
    hopeless = {MIN_VERSION_HEADER: "999999"}
    waiting = [_chat(cluster, **hopeless) for _ in range(2)]
    await _queued(cluster, 2)
    with pytest.raises(openai.RateLimitError, match="no replica may serve it") as refusal:
        await _chat(cluster, **hopeless)
    assert refusal.value.type == "queue_full"
    last = _chat(cluster)
    await _queued(cluster, 3)
    await _end(running)
    await asyncio.wait_for(last, 300)
    await _end(*waiting)


async def test_lines_take_turns_and_what_goes_first_does_so_over_all_of_them(cluster):
    """Those who ask for a version stand in a line of their own."""
    await cluster.start(replicas=1, max_sequences=1, min_sequences=1)
    await cluster.until_leased("replica-0")
    reservations, order = cluster.reservations, []

    async def take(name, version, priority=0, urgent=False):
        needs = Needs(min_version=version, priority=priority)
        with await reservations.reserve(
            ReservationRequest(model=None, session=None, weight=1, needs=needs, urgent=urgent)
        ):
            order.append(name)

    with await reservations.reserve(ReservationRequest(model=None, session=None, weight=1)):
        waiting = []
        wishes = [
            *[("any", None), ("any", None), ("any", None), ("one", 1), ("one", 1), ("zero", 0)],
            *[("first", 1, -1), ("begun", 0, 5, True)],
        ]
        for wish in wishes:
            waiting.append(asyncio.create_task(take(*wish)))
            await _queued(cluster, len(waiting))
    await asyncio.wait_for(asyncio.gather(*waiting), 300)
    assert order[:2] == ["begun", "first"]
    assert order[2:5] in (["any", "one", "zero"], ["any", "zero", "one"])
    assert order[5:] == ["one", "any", "any"] or order[5:] == ["any", "one", "any"]


async def test_a_wait_that_is_too_long_ends(cluster, fault):
    running = await _full(cluster, fault, queue_wait_s=0.05)
    with pytest.raises(openai.RateLimitError, match="every replica was full") as refusal:
        await _chat(cluster)
    assert refusal.value.type == "queue_timeout"
    await _end(running)


async def test_whoever_leaves_the_queue_is_gone_at_once(cluster, fault):
    running = await _full(cluster, fault)
    waiting = [_chat(cluster, name) for name in ("first", "second")]
    await _queued(cluster, 2)
    await _end(waiting[0])
    await _queued(cluster, 1)
    await _end(running)
    await asyncio.wait_for(waiting[1], 300)
    assert _asked(cluster) == ["hello", "second"]


async def test_an_answer_that_was_begun_goes_on_before_new_ones(cluster):
    """Also before those of a higher priority, and when the queue is full."""
    await cluster.start(replicas=1, max_sequences=1, min_sequences=1, max_queued_requests=1)
    await cluster.until_leased("replica-0")
    reservations, order = cluster.reservations, []

    async def take(name, **wish):
        with await reservations.reserve(
            ReservationRequest(model=None, session=None, weight=1, **wish)
        ):
            order.append(name)

    with await reservations.reserve(ReservationRequest(model=None, session=None, weight=1)):
        new = asyncio.create_task(take("new", needs=Needs(priority=-5)))
        await _queued(cluster, 1)
        begun = asyncio.create_task(take("begun", urgent=True))
        await _queued(cluster, 2)
    await asyncio.wait_for(asyncio.gather(new, begun), 300)
    assert order == ["begun", "new"]


async def test_what_would_rather_go_elsewhere_goes_back_before_it_blocks_the_queue(cluster):
    """The replica that broke it has a lease and room; the other one is full."""
    await cluster.start(max_sequences=1, min_sequences=1)
    await cluster.until_leased("replica-0", "replica-1")
    reservations = cluster.reservations
    with await reservations.reserve(
        ReservationRequest(model=None, session=None, weight=1)
    ) as taken:
        wish = {"session": None, "weight": 1, "urgent": True}
        (idle,) = {"replica-0", "replica-1"} - {taken.replica_id}
        with await asyncio.wait_for(
            reservations.reserve(ReservationRequest(model=None, avoid=idle, **wish)), 60
        ) as reservation:
            assert reservation.replica_id == idle
    with await reservations.reserve(
        ReservationRequest(model=None, avoid="replica-0", **wish)
    ) as reservation:
        assert reservation.replica_id == "replica-1"


@pytest.mark.parametrize(("reason", "ejects"), [("status", False), ("connection", True)])
async def test_a_parser_that_fails_says_nothing_of_the_engine(cluster, reason, ejects):
    await cluster.start(replicas=1, eject_after=2, eject_s=60.0)
    await cluster.until_leased("replica-0")
    reservations = cluster.reservations
    for _ in range(2):
        with (
            pytest.raises(UpstreamBroken),
            await reservations.reserve(ReservationRequest(model=None, session=None, weight=0)),
        ):
            raise UpstreamBroken(reason)
    assert reservations.chooser.health("replica-0").ejected is ejects


async def test_whoever_waits_for_a_model_that_goes_is_told_so(cluster):
    await cluster.start(leased=False)
    waiting = [_chat(cluster) for _ in range(3)]
    await _queued(cluster, 3)
    await cluster.bus.put(*(replica.member(model="other") for replica in cluster.replicas))
    for one in waiting:
        with pytest.raises(openai.NotFoundError, match="served: other"):
            await asyncio.wait_for(one, 300)
    assert not len(cluster.reservations.queue)


async def test_a_reservation_that_comes_as_its_client_goes_is_given_to_the_next(cluster):
    await cluster.start(replicas=1, max_sequences=1, min_sequences=1)
    reservations = cluster.reservations
    wish = {"session": None, "weight": 1}
    await cluster.until_leased("replica-0")
    with await reservations.reserve(ReservationRequest(model=None, **wish)):
        leaving = asyncio.create_task(reservations.reserve(ReservationRequest(model=None, **wish)))
        staying = asyncio.create_task(reservations.reserve(ReservationRequest(model=None, **wish)))
        await _queued(cluster, 2)
    leaving.cancel()  # its reservation is there, but it has not run since
    with await asyncio.wait_for(staying, 300) as reservation:
        assert reservations.chooser.counts == {reservation.replica_id: 1}
    assert reservations.chooser.counts == {}
    assert leaving.cancelled()


async def test_what_runs_no_sequence_waits_for_nobody(cluster, fault):
    running = await _full(cluster, fault)
    waiting = _chat(cluster)
    await _queued(cluster, 1)
    with await asyncio.wait_for(
        cluster.reservations.reserve(ReservationRequest(model=None, session=None, weight=0)), 60
    ) as reservation:
        assert reservation.replica_id == "replica-0"
    await _end(running, waiting)


async def test_a_request_waits_for_the_policy_version_that_it_asks_for(cluster):
    await cluster.start()
    waiting = _chat(cluster, **{MIN_VERSION_HEADER: "3"})
    await _queued(cluster, 1)
    first, second = (replica.member() for replica in cluster.replicas)
    await cluster.bus.put(replace(first, committed_version=2))
    await cluster.bus.put(replace(second, committed_version=3))
    await asyncio.wait_for(waiting, 300)
    assert [len(replica.bodies) for replica in cluster.replicas] == [0, 1]
    raw = await cluster.client.chat.completions.with_raw_response.create(
        model="test-model", messages=ASK, extra_headers={MIN_VERSION_HEADER: "2"}
    )
    assert raw.headers[REPLICA_HEADER] in ("replica-0", "replica-1")


async def test_a_version_that_does_not_come_is_refused_with_those_that_are_there(cluster):
    await cluster.start(lease_wait_s=0.1)
    await cluster.bus.put(replace(cluster.replicas[0].member(), committed_version=4))
    with pytest.raises(openai.InternalServerError, match=r"version 9 .* seen: \[1, 4\]") as refusal:
        await _chat(cluster, **{MIN_VERSION_HEADER: "9"})
    assert (refusal.value.status_code, refusal.value.type) == (503, "version_not_served")
    assert not any(replica.bodies for replica in cluster.replicas)


@pytest.mark.parametrize(
    ("header", "value"),
    [(MIN_VERSION_HEADER, "new"), (MIN_VERSION_HEADER, "-1"), (PRIORITY_HEADER, "1.5")],
)
async def test_a_header_that_is_no_number_is_refused_by_name(cluster, header, value):
    await cluster.start(replicas=1)
    with pytest.raises(openai.BadRequestError) as refusal:
        await _chat(cluster, **{header: value})
    assert refusal.value.param == header


def test_priority_is_that_of_the_header_or_the_body():
    assert Needs.of({"priority": 3}, {}, flow="").priority == 3
    assert Needs.of({"priority": 3}, {PRIORITY_HEADER: "-2"}, flow="").priority == -2
    assert Needs.of({"priority": "high"}, {}, flow="").priority == 0
    with pytest.raises(RequestFailed):
        Needs.of({}, {PRIORITY_HEADER: ""}, flow="")


async def test_those_who_wait_for_a_model_that_goes_get_an_error_each():
    """What is told in one client's error is not told in another's."""
    gone = []

    def refusal(model):
        return RequestFailed(404, "model_not_found", f"{model} is gone") if gone else None

    queue = ReservationQueue(
        RouterConfig(),
        take=lambda request: None,
        refusal=refusal,
        servable=lambda request: True,
        unavailable=lambda request: RequestFailed(503, "no_lease", "none"),
        next_chance=lambda request: None,
    )
    request = ReservationRequest(model="m", session=None, weight=1)
    waiting = [asyncio.create_task(queue.wait(request)) for _ in range(2)]
    await _until(lambda: len(queue) == 2)
    gone.append("m")
    queue.advance()
    first, second = await asyncio.gather(*waiting, return_exceptions=True)
    first.body["error"]["generated"] = {"choices": [{"text": "of the first one's client"}]}
    assert "generated" not in second.body["error"]
