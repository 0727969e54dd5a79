"""The router's view of the member table, against a bus that tests drive by hand."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.router.config import RouterConfig
from services.router.placement.membership import Membership
from services.side_by_side import running


def _member(name, **changes):
    known = Member(
        replica_id=name,
        address="http://127.0.0.1:1",
        state=ReplicaState.LIVE,
        committed_version=1,
        leased=True,
        model="m",
        max_model_len=10,
        pid=1,
    )
    return replace(known, **changes)


def _table(revision, *members, lease_s=30.0, bus_id="b"):
    return MemberTable(
        bus_id=bus_id,
        revision=revision,
        newest_version=1,
        lease_s=lease_s,
        members=members,
        trainer_ready=True,
        pushes=0,
    )


class _Bus:
    """Answers each poll with what a test puts in: a table or an error."""

    def __init__(self):
        self.answers: asyncio.Queue = asyncio.Queue()
        self.polls: list[tuple[int, float]] = []

    async def watch(self, revision, wait_s):
        self.polls.append((revision, wait_s))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def watched():
    bus, gone, news = _Bus(), [], asyncio.Queue()
    membership = Membership(
        bus, RouterConfig(), on_gone=gone.append, on_news=lambda: news.put_nowait(None)
    )

    async def say(answer):
        bus.answers.put_nowait(answer)
        await asyncio.wait_for(news.get(), 300)

    async with running(membership.watch(), name="membership"):
        yield membership, bus, gone, say


async def test_only_leased_members_of_the_model_may_get_work(watched):
    membership, _, _, say = watched
    await say(_table(1, _member("a"), _member("b", leased=False), _member("c", model="other")))
    assert set(membership.leased("m")) == {"a"}
    assert set(membership.leased(None)) == {"a", "c"}
    assert not membership.holds_lease("b")
    assert set(membership.members) == {"a", "b", "c"}


async def test_a_slow_answer_shortens_the_lease_because_it_may_be_old(monkeypatch, watched):
    membership, bus, _, say = watched
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr("services.router.placement.membership.time", clock)
    await say(_table(1, _member("a"), lease_s=0.2))
    await say(_table(2, _member("a"), lease_s=0.2))
    assert membership.holds_lease("a")
    assert bus.polls[-1] == (2, pytest.approx(0.05))
    clock.now += 0.3
    await say(_table(3, _member("a"), lease_s=0.2))
    assert not membership.leased(None)


async def test_the_dead_and_the_vanished_are_reported(watched):
    membership, _, gone, say = watched
    everyone = [_member(name) for name in "abcd"]
    await say(_table(1, *everyone))
    assert gone == []
    dead = _member("a", state=ReplicaState.DEAD, leased=False)
    await say(_table(2, dead, everyone[1], everyone[2]))
    assert gone == [{"a", "d"}]
    assert set(membership.leased(None)) == {"b", "c"}


@pytest.mark.parametrize("state", [ReplicaState.PAUSED, ReplicaState.ASLEEP])
async def test_what_an_operator_holds_drains(watched, state):
    _, _, gone, say = watched
    await say(_table(1, _member("a")))
    await say(_table(2, _member("a", state=state, leased=False)))
    assert gone == [{"a"}]


async def test_the_suspected_drain_only_to_others_of_their_model(watched):
    """Alone, it may come back, and what it has begun with it."""
    _, _, gone, say = watched
    suspect = _member("a", state=ReplicaState.SUSPECT, leased=False)
    await say(_table(1, suspect, _member("b", model="other")))
    await say(_table(2, suspect, _member("b", leased=False)))
    assert gone == []
    await say(_table(3, suspect, _member("b")))
    assert gone == [{"a"}]


@pytest.mark.parametrize("revision", [0, 7, 9])
async def test_a_restarted_bus_that_knows_nobody_yet_breaks_no_open_request(watched, revision):
    """However far its own count has come when it is heard of."""
    membership, _, gone, say = watched
    await say(_table(7, _member("a")))
    await say(_table(revision, bus_id="another"))
    assert gone == []
    assert not membership.leased(None)
    await say(_table(revision + 1, _member("a"), bus_id="another"))
    assert set(membership.leased(None)) == {"a"}


async def test_a_bus_that_comes_back_is_asked_for_all_that_it_knows(watched):
    _, bus, _, say = watched
    await say(_table(7, _member("a")))
    await say(NotReady("it restarts"))
    await say(_table(7, bus_id="another"))
    assert [revision for revision, _ in bus.polls[:3]] == [-1, 7, -1]


async def test_watching_goes_on_after_any_failure_of_the_bus(watched):
    membership, _, _, say = watched
    await say(NotReady("no bus yet"))
    await say(RuntimeError("a bug in the bus"))
    await say(_table(1, _member("a")))
    assert membership.holds_lease("a")


async def test_whoever_waits_hears_of_a_change(watched):
    membership, _, _, say = watched
    waiting = asyncio.create_task(membership.wait_for_change(30))
    await say(_table(1, _member("a")))
    await asyncio.wait_for(waiting, 300)
