"""Several routers that answer as one."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.protocol.errors import NotReady
from services.protocol.router import CHOICE_HEADER, REPLICA_HEADER
from services.router.config import RouterConfig
from services.router.placement.choice import SessionTable
from services.router.placement.reservation import ReservationRequest
from services.router.placement.reservations import Reservations
from services.router.sharing.sharing import SharedTable, Sharing, SyncRequest

from .conftest import Bus, Cluster
from .test_failover import _whole

ASK = [{"role": "user", "content": "hello"}]


class _Clock:
    now = 0.0

    def __call__(self):
        return self.now


class _Point:
    """The table within this process; it can be away, and it can be another one."""

    def __init__(self, **settings):
        self._settings = {"bound": 1000, "expire_s": 3.0, **settings}
        self.away = False
        self.restart()

    def restart(self):
        self.table = SharedTable(**self._settings)

    async def exchange(self, request):
        if self.away:
            raise NotReady("away on purpose")
        return self.table.exchange(request)


def _request(router, counts=(), homes=(), table_id="", revision=0, floors=()):
    return SyncRequest(
        router_id=router,
        counts=dict(counts),
        homes=dict(homes),
        floors=dict(floors),
        table_id=table_id,
        revision=revision,
    )


def test_each_hears_what_the_others_have_in_flight_and_the_dead_are_not_counted():
    clock = _Clock()
    table = SharedTable(bound=10, expire_s=3.0, clock=clock)
    table.exchange(_request("one", {"a": 2}))
    table.exchange(_request("two", {"a": 1, "b": 5}))
    assert table.exchange(_request("three")).counts == {"a": 3, "b": 5}
    assert table.exchange(_request("one", {"a": 1})).counts == {"a": 1, "b": 5}
    clock.now = 3.5
    table.exchange(_request("two", {"a": 4}))
    assert table.exchange(_request("three")).counts == {"a": 4}


def test_homes_are_told_once_and_to_everybody_but_their_teller():
    table = SharedTable(bound=10, expire_s=3.0)
    own = table.exchange(_request("one", homes={"s": "a"}))
    assert own.homes == {}
    response = table.exchange(_request("two"))
    assert response.homes == {"s": "a"}
    again = _request("two", {}, {}, response.table_id, response.revision)
    assert table.exchange(again).homes == {}
    table.exchange(_request("one", homes={"s": None}))
    assert table.exchange(again).homes == {"s": None}
    table.exchange(_request("one", homes={f"s{number}": "a" for number in range(50)}))
    assert len(table.exchange(_request("new")).homes) == 10


names = st.sampled_from(["r1", "r2", "r3"])
pauses = st.integers(0, 16).map(lambda quarters: quarters / 4)
"""Sums and differences of these are exact: who is silent for 3 s is so by every arithmetic."""
news = st.tuples(names, st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)), pauses)


@given(talk=st.lists(news, max_size=40))
@settings(max_examples=60)
def test_the_others_counts_are_the_sum_of_what_each_living_one_said_last(talk):
    clock, last = _Clock(), {}
    table = SharedTable(bound=10, expire_s=3.0, clock=clock)
    for router, counts, pause in talk:
        clock.now += pause
        last[router] = (counts, clock.now)
        heard = table.exchange(_request(router, counts)).counts
        living = [c for name, (c, at) in last.items() if name != router and clock.now - at <= 3.0]
        for replica in "ab":
            assert heard.get(replica, 0) == sum(counts.get(replica, 0) for counts in living)


def test_what_changed_here_is_newer_than_what_others_say():
    homes = SessionTable(bound=10, idle_s=60.0)
    homes.shared = True
    homes.set("s", "a", 0.0)
    homes.apply("s", "b", 0.0)
    assert homes.get("s", 0.0) == "a"
    assert homes.take_changes(10) == {"s": "a"}
    homes.apply("s", "b", 0.0)
    assert homes.get("s", 0.0) == "b"
    assert homes.take_changes(10) == {}, "what was heard is not sent again"


def _sharing(point, **settings):
    reservations = Reservations(RouterConfig(**settings), Bus())
    return reservations.chooser, Sharing(RouterConfig(**settings), reservations, point)


def _choose(chooser, session):
    choice = chooser.choose(["a", "b", "c"], session=session, weight=1, now=0.0)
    chooser.release(choice.replica_id, 1)
    return choice


async def test_a_table_that_starts_again_is_told_everything_again():
    point = _Point()
    (first, one), (second, two) = _sharing(point), _sharing(point)
    homes = {name: _choose(first, name).replica_id for name in ("s", "t")}
    await one.exchange()
    point.restart()
    for _ in range(2):  # the first finds out that the table is new
        await one.exchange()
    await two.exchange()
    assert {name: second.homes.get(name, 0.0) for name in homes} == homes


async def test_nothing_is_lost_while_the_table_is_away():
    point = _Point()
    (first, one), (second, two) = _sharing(point), _sharing(point)
    home = _choose(first, "s").replica_id
    point.away = True
    with pytest.raises(NotReady):
        await one.exchange()
    point.away = False
    await one.exchange()
    await two.exchange()
    assert second.homes.get("s", 0.0) == home


async def test_a_burst_over_two_routers_spreads_as_over_one():
    point = _Point()
    (first, one), (second, two) = _sharing(point), _sharing(point)
    for _ in range(30):
        for chooser, sharing in ((first, one), (second, two)):
            chooser.choose(["a", "b", "c"], session=None, weight=1, now=0.0)
            await sharing.exchange()
    await one.exchange()
    assert {name: first.load(name) for name in "abc"} == {"a": 20, "b": 20, "c": 20}


@pytest.fixture
async def pair():
    """Two routers before the same replicas."""
    point, first, second = _Point(expire_s=0.3), Cluster(), Cluster()
    shared = {"share_s": 0.01, "share_expire_s": 0.3}
    await first.start(point=point, **shared)
    second.bus = first.bus
    await second.start(replicas=0, point=point, **shared)
    await second.until_leased("replica-0", "replica-1")
    yield point, first, second
    await second.close()
    await first.close()


async def _call(router, session):
    raw = await router.client.chat.completions.with_raw_response.create(
        model="test-model", messages=ASK, extra_headers={"x-session-id": session}
    )
    return raw.headers[REPLICA_HEADER], raw.headers[CHOICE_HEADER]


async def _until(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110  these conditions have no event
            await asyncio.sleep(0.005)


async def test_a_session_stays_on_its_replica_whichever_router_it_comes_through(pair):
    _, first, second = pair
    homes = {}
    for number in range(6):
        session = f"episode-{number}"
        homes[session], kind = await _call(first, session)
        assert kind == "new"
    known = second.reservations.chooser.homes
    await _until(lambda: all(known.get(name, 0.0) == home for name, home in homes.items()))
    for session, home in homes.items():
        assert await _call(second, session) == (home, "hit")
        assert await _call(first, session) == (home, "hit")


async def test_an_interruption_reaches_the_router_that_has_the_answer(pair, fault):
    """Through whichever router it comes; and later calls wait for the version everywhere."""
    _, first, second = pair
    session = {"x-session-id": "episode"}
    first.faults.append(fault("stall", 3))
    first.http.headers.update(session)
    answer = asyncio.create_task(_whole(first))
    stalled = await first.stalled()
    url = f"{second.url}/v1/sessions/episode/interrupt"
    got = await second.http.post(url, json={"min_version": 2}, headers=session)
    assert got.json()["stopped"] == 0, "the other one has the answer"
    async with asyncio.timeout(300):
        await stalled.hung_up.wait()
    assert not answer.done()
    assert await second.reservations.interruptions.passed("another", "test-model") is None
    for replica in first.replicas:
        replica.version = 2
    await first.bus.put(*(replica.member() for replica in first.replicas))
    (whole,) = await answer
    assert whole["versions"] == [1] * 3 + [2] * (len(whole["tokens"]) - 3)
    assert await first.reservations.interruptions.passed("episode", "test-model") == 2
    assert await second.reservations.interruptions.passed("episode", "test-model") == 2


def test_an_interruption_is_told_once_and_to_everybody_but_its_teller():
    table = SharedTable(bound=10, expire_s=3.0)
    assert table.exchange(_request("one", floors={"s": 4})).floors == {}
    heard = table.exchange(_request("two"))
    assert heard.floors == {"s": 4}
    later = _request("two", table_id=heard.table_id, revision=heard.revision)
    assert table.exchange(later).floors == {}
    table.exchange(_request("one", floors={f"s{number}": 5 for number in range(50)}))
    assert len(table.exchange(_request("new")).floors) == 10


async def test_a_router_that_dies_leaves_no_counts_behind(pair, fault):
    """And none is lost: what the living one has in flight stays counted to the last."""
    _, first, second = pair
    first.faults.extend([fault("stall", 2), fault("stall", 2)])
    own = asyncio.create_task(_call(first, "own"))
    await first.stalled()
    other = asyncio.create_task(_call(second, "other"))
    chooser = first.reservations.chooser
    await _until(lambda: sum(chooser.elsewhere.values()) == 1)
    assert sum(chooser.counts.values()) == 1
    (sharing,) = (
        task
        for task in asyncio.all_tasks()
        if task.get_name() == "sharing"
        and task.get_coro().cr_frame.f_locals["self"]._reservations is second.reservations
    )
    sharing.cancel()
    await _until(lambda: not chooser.elsewhere)
    assert sum(chooser.counts.values()) == 1
    for task in (own, other):
        task.cancel()
    await asyncio.gather(own, other, return_exceptions=True)
    await _until(lambda: not chooser.counts)


async def test_a_router_without_the_table_decides_alone(pair):
    point, first, second = pair
    point.away = True
    with await second.reservations.reserve(ReservationRequest(model=None, session=None, weight=1)):
        await _call(first, "s")
        point.away = False
        await _until(lambda: sum(first.reservations.chooser.elsewhere.values()) == 1)
        point.away = True
        await _until(lambda: not first.reservations.chooser.elsewhere)
        await _call(first, "s")
