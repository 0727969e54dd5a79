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
    with pytest.raises(RequestFailed, match="'b' is not here") as refused:
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
