"""The record of sessions is bounded in number, tokens and time."""

import pytest

from services.protocol.session import SessionEnding
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.trajectories.session_store import SessionStore
from services.router.trajectories.trajectory_tree import History, RecordedCall, RecordedChoice


def _store(**settings):
    return SessionStore(RouterConfig(**settings))


def _call(tokens):
    choice = RecordedChoice(
        token_ids=[2] * (tokens - 1),
        logprobs=[-1.0] * (tokens - 1),
        spans=[(1, 0, tokens - 1, "a")],
        finish_reason="stop",
        text="",
    )
    return RecordedCall(prompt_token_ids=[1], choices=[choice], history=History([]))


def _recorded(store, tokens, now=0.0):
    session = store.create({}, now=now, wall=now)
    store.end(session.id, store.begin(session, now=now).number, _call(tokens), now=now)
    return session


def test_beyond_the_bound_of_tokens_the_least_recently_used_session_is_dropped():
    store = _store(max_recorded_tokens=25)
    first, second = _recorded(store, 10), _recorded(store, 10)
    store.begin(first, now=1.0)
    third = _recorded(store, 10)
    assert [store.find(session.id) for session in (first, second, third)] == [first, None, third]
    assert (store.tokens, store.dropped) == (20, {"tokens": 1})


def test_a_session_larger_than_the_bound_is_dropped_itself():
    store = _store(max_recorded_tokens=25)
    session = _recorded(store, 26)
    assert store.find(session.id) is None
    assert (store.tokens, len(store)) == (0, 0)


def test_beyond_the_bound_of_sessions_the_least_recently_used_is_dropped():
    store = _store(max_recorded_sessions=2)
    sessions = [_recorded(store, 3) for _ in range(3)]
    assert [store.find(session.id) is None for session in sessions] == [True, False, False]
    assert store.dropped == {"sessions": 1}


def test_idle_sessions_are_dropped_finished_or_not_but_none_with_an_open_call():
    store = _store(session_idle_s=10.0)
    idle, finished, busy = [store.create({}, now=0.0, wall=0.0) for _ in range(3)]
    store.finish(finished, SessionEnding(), now=1.0, wall=1.0)
    number = store.begin(busy, now=2.0).number
    store.expire(10.5)
    assert [store.find(session.id) for session in (idle, finished, busy)] == [None, finished, busy]
    store.expire(30.0)
    assert store.find(finished.id) is None
    assert store.finished(0, 10) == []
    assert store.end(busy.id, number, _call(3), now=31.0) == "first"
    store.expire(50.0)
    assert len(store) == 0
    assert store.tokens == 0
    assert store.dropped == {"idle": 3}


def test_a_call_that_never_ends_does_not_keep_its_session_for_ever():
    store = _store(session_idle_s=10.0)
    session = store.create({}, now=0.0, wall=0.0)
    store.begin(session, now=0.0)
    store.expire(86_000.0)
    assert store.find(session.id) is session
    store.expire(86_500.0)
    assert store.find(session.id) is None


def test_a_call_of_a_dropped_session_is_not_put_into_a_later_one_of_the_same_name():
    store = _store()
    old = store.create({}, now=0.0, wall=0.0, session_id="episode")
    number = store.begin(old, now=0.0).number
    store.delete(old)
    new = store.create({}, now=1.0, wall=1.0, session_id="episode")
    assert store.end("episode", number, _call(3), now=2.0) is None
    assert new.tree.tokens == store.tokens == 0


def test_cursors_grow_whatever_the_clock_says():
    store = _store()
    cursors = []
    for wall in (5.0, 5.0, 4.0):
        session = store.create({}, now=0.0, wall=wall)
        store.finish(session, SessionEnding(), now=0.0, wall=wall)
        cursors.append(session.cursor)
    assert cursors == [5000, 5001, 5002]


def test_a_finished_session_takes_no_call():
    store = _store()
    session = store.create({}, now=0.0, wall=0.0)
    store.finish(session, SessionEnding(reward=1.0), now=0.0, wall=0.0)
    with pytest.raises(RequestFailed) as refusal:
        store.begin(session, now=0.0)
    assert (refusal.value.status, refusal.value.kind) == (409, "session_finished")


def test_a_session_with_its_most_tokens_takes_no_more_calls_and_can_be_finished():
    store = _store(max_session_tokens=10)
    flooding, other = _recorded(store, 10), _recorded(store, 9)
    with pytest.raises(RequestFailed, match="has 10 tokens, as many as") as refusal:
        store.begin(flooding, now=0.0)
    assert (refusal.value.status, refusal.value.kind) == (429, "too_many_session_tokens")
    assert not flooding.open
    store.begin(other, now=0.0)
    store.finish(flooding, SessionEnding(reward=1.0), now=0.0, wall=0.0)
    assert flooding.state == "finished"


def test_rewards_of_turns_that_add_up_to_one_make_one():
    store = _store()
    session = store.create({}, now=0.0, wall=0.0)
    store.add_reward(session, 0.7, now=0.0)
    store.end(session.id, store.begin(session, now=0.0).number, _call(4), now=0.0)
    store.add_reward(session, 0.2, now=0.0)
    store.finish(session, SessionEnding(reward=0.1), now=1.0, wall=1.0)
    assert session.ending.reward == 1.0


def test_rewards_of_tokens_are_kept_by_their_call_and_count_in_the_sum():
    store = _store()
    session = store.create({}, now=0.0, wall=0.0)
    with pytest.raises(RequestFailed, match="1 for the 0 tokens"):
        store.add_reward(session, [1.0], now=0.0)
    store.end(session.id, store.begin(session, now=0.0).number, _call(4), now=0.0)
    tokens = len(session.tree.reading().leaves()[0].sampled)
    with pytest.raises(RequestFailed) as refused:
        store.add_reward(session, [1.0] * (tokens + 1), now=0.0)
    assert refused.value.status == 400
    for _ in range(2):
        store.add_reward(session, [0.5] * tokens, now=0.0)
    store.add_reward(session, 0.25, now=0.0)
    store.finish(session, SessionEnding(), now=1.0, wall=1.0)
    summary = session.summary()
    assert summary.token_rewards == {1: [1.0] * tokens}
    assert (summary.turn_rewards, summary.reward) == ({1: 0.25}, tokens + 0.25)


def test_rewards_before_the_end_are_kept_by_the_newest_call_then():
    store = _store()
    session = store.create({}, now=0.0, wall=0.0)
    store.add_reward(session, 0.5, now=0.0)
    for reward in (1.0, 2.0):
        store.end(session.id, store.begin(session, now=0.0).number, _call(4), now=0.0)
        store.add_reward(session, reward, now=0.0)
        store.add_reward(session, 0.25, now=0.0)
    store.finish(session, SessionEnding(reward=4.0), now=1.0, wall=1.0)
    summary = session.summary()
    assert summary.turn_rewards == {0: 0.5, 1: 1.25, 2: 2.25}
    assert summary.reward == 8.0
    reading = session.tree.reading()
    turns = [one.turns for one in reading.trajectories(reading.leaves())]
    assert turns == [[(3, 1)], [(3, 2)]]
