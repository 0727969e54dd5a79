"""Responses that later ones go on from are kept within bounds of number, size and time."""

import pytest

from services.router.errors import RequestFailed
from services.router.trajectories.stored_responses import StoredResponses


def _store(**changes):
    return StoredResponses(**{"max_responses": 10, "max_bytes": 10_000, "idle_s": 60.0, **changes})


def _put(store, name, said, earlier=None, now=0.0, size=1):
    output = [{"type": "message", "id": f"m-{name}", "text": "x" * size}]
    store.put({"id": name, "output": output}, [{"role": "user", "content": said}], earlier, now=now)


def _said(items):
    return [item.get("content", item.get("id")) for item in items]


def test_a_response_knows_all_that_was_said_before_it():
    store = _store()
    _put(store, "a", "one")
    _put(store, "b", "two", "a")
    _put(store, "c", "other", "a")
    assert _said(store.history("b", now=1.0)) == ["one", "m-a", "two", "m-b"]
    assert _said(store.history("c", now=1.0)) == ["one", "m-a", "other", "m-c"]


@pytest.mark.parametrize(
    "bound", [{"max_responses": 3}, {"max_bytes": 1500}], ids=["number", "bytes"]
)
def test_the_least_recently_used_goes_first(bound):
    store = _store(**bound)
    for name in "abc":
        _put(store, name, name, size=300)
    store.get("a", now=1.0)
    _put(store, "d", "d", size=300)
    with pytest.raises(RequestFailed, match="'b' not found") as refused:
        store.get("b", now=1.0)
    assert refused.value.status == 404
    assert store.get("a", now=1.0)["id"] == "a"


def test_what_is_not_used_for_long_is_forgotten():
    store = _store()
    _put(store, "a", "one")
    _put(store, "b", "two", "a", now=50.0)
    store.history("b", now=100.0)
    assert store.get("a", now=150.0)["id"] == "a", "it is used by what goes on from it"
    with pytest.raises(RequestFailed):
        store.get("b", now=161.0)
    assert len(store) == 1


def test_a_deleted_response_stays_a_part_of_those_after_it():
    store = _store()
    _put(store, "a", "one")
    _put(store, "b", "two", "a")
    assert store.remove("a")
    assert not store.remove("a")
    assert _said(store.history("b", now=1.0)) == ["one", "m-a", "two", "m-b"]
    store.remove("b")
    assert store.nbytes == 0


@pytest.mark.parametrize("chosen", ["b", "a"], ids=["another id", "the same id"])
def test_a_response_whose_conversation_has_gone_meanwhile_is_not_kept(chosen):
    """Else the next one would go on from it without what was said before."""
    store = _store()
    _put(store, "a", "my name is Bob")
    store.history("a", now=1.0)
    store.remove("a")
    _put(store, chosen, "two", "a", now=2.0)
    with pytest.raises(RequestFailed, match="send all of its items as input"):
        store.history(chosen, now=3.0)
    assert (len(store), store.nbytes) == (0, 0)


def test_an_id_that_a_client_uses_again_names_the_newer_response():
    store = _store()
    _put(store, "a", "one")
    _put(store, "a", "two", "a")
    assert _said(store.history("a", now=1.0)) == ["one", "m-a", "two", "m-a"]
    store.remove("a")
    assert store.nbytes == 0


@pytest.mark.parametrize("deletes", [False, True], ids=["kept", "deleted"])
@pytest.mark.parametrize(
    "bound", [{"max_responses": 5}, {"max_bytes": 2500}], ids=["number", "bytes"]
)
def test_bounds_hold_for_what_lives_in_a_long_conversation(bound, deletes):
    store, names = _store(**{"max_responses": 100, **bound}), []
    for number in range(40):
        name = f"{number}"
        _put(store, name, "x" * 200, names[-1] if names else None, now=float(number), size=200)
        names.append(name)
        if deletes and number % 3 == 1:
            store.remove(names[-2])
        living = {id(one): one for _, kept in store._stored.values() for one in kept.chain()}
        assert store.nbytes == sum(one.nbytes for one in living.values()) <= store._max_bytes
        assert len(living) <= store._max_responses
    assert len(names) == 40


def test_the_last_turns_of_a_conversation_are_dropped_before_its_first_ones():
    store = _store(max_responses=3)
    for name, earlier in (("a", None), ("b", "a"), ("c", "b")):
        _put(store, name, name, earlier)
    _put(store, "other", "other", now=1.0)
    assert _said(store.history("b", now=2.0)) == ["a", "m-a", "b", "m-b"]
    with pytest.raises(RequestFailed):
        store.get("c", now=2.0)


def _background(store, status, said="x"):
    output = [] if status == "queued" else [{"type": "message", "id": status}]
    response = {"id": "a", "status": status, "background": True, "output": output}
    store.put(response, [{"role": "user", "content": said}], None, now=0.0)


def test_a_response_of_the_background_is_replaced_by_what_came_of_it():
    store = _store()
    _background(store, "queued")
    _background(store, "completed", "one")
    assert _said(store.history("a", now=1.0)) == ["one", "completed"]


@pytest.mark.parametrize("first", ["cancelled", "deleted"])
def test_what_another_router_has_ended_is_not_kept_again(first):
    store = _store()
    _background(store, "queued")
    if first == "deleted":
        store.remove("a")
        _background(store, "completed")
        assert len(store) == 0
        return
    _background(store, "cancelled")
    _background(store, "completed")
    assert store.get("a", now=1.0)["status"] == "cancelled"


def test_nothing_goes_on_from_a_response_that_is_not_there_yet():
    store = _store()
    _background(store, "queued")
    with pytest.raises(RequestFailed, match="not finished") as refused:
        store.history("a", now=1.0)
    assert refused.value.status == 400
