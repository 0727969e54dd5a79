"""The choice of a replica, without clock, network or Ray."""

from collections import Counter

import pytest

from services.router.config import RouterConfig
from services.router.placement.choice import ReplicaChooser
from services.router.request.needs import NO_PREFIX, PromptPrefix

THREE = ["a", "b", "c"]


def _chooser(**settings):
    return ReplicaChooser(RouterConfig(**settings))


def _choose(chooser, candidates=THREE, session=None, weight=1, now=0.0, prefix=NO_PREFIX):
    return chooser.choose(candidates, session=session, weight=weight, now=now, prefix=prefix)


def test_a_burst_spreads_evenly_because_counts_are_taken_at_the_choice():
    chooser = _chooser()
    counts = Counter(_choose(chooser).replica_id for _ in range(30))
    assert counts == {"a": 10, "b": 10, "c": 10}


def test_ties_rotate_when_nothing_is_in_flight():
    chooser = _chooser()
    order = []
    for _ in range(6):
        order.append(_choose(chooser).replica_id)
        chooser.release(order[-1], 1)
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_a_group_weighs_as_much_as_its_choices():
    chooser = _chooser()
    heavy = _choose(chooser, weight=16).replica_id
    others = {_choose(chooser).replica_id for _ in range(8)}
    assert heavy not in others


def test_a_session_goes_home_until_home_is_too_loaded():
    chooser = _chooser(spill_threshold=2, spill_ratio=0.0)
    home = _choose(chooser, session="s")
    assert home.kind == "new"
    kinds = [_choose(chooser, session="s") for _ in range(3)]
    assert [choice.kind for choice in kinds] == ["hit", "hit", "spilled"]
    assert kinds[-1].replica_id != home.replica_id


def test_among_loaded_replicas_a_session_stays_for_longer():
    """Forty more than two are many, than four hundred are not."""
    for others, kind in ((2, "spilled"), (400, "hit")):
        chooser = _chooser(spill_threshold=32, spill_ratio=0.5)
        home = _choose(chooser, session="s").replica_id
        for replica in THREE:
            _choose(chooser, [replica], weight=others + 40 * (replica == home))
        assert _choose(chooser, session="s").kind == kind


def test_a_finished_session_is_new_again():
    chooser = _chooser()
    _choose(chooser, session="s")
    chooser.homes.forget("s")
    assert _choose(chooser, session="s").kind == "new"
    assert len(chooser.homes) == 1


def _body(*texts):
    roles = ["system", *["user", "assistant"] * len(texts)]
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]}


def test_samples_of_one_prompt_share_a_replica_until_that_unbalances():
    chooser = _chooser(group_slack=4, group_ratio=0.0)
    prefix = PromptPrefix.of(_body("rules", "task"))
    homes = [_choose(chooser, prefix=prefix).replica_id for _ in range(15)]
    assert len(set(homes[:5])) == 1
    assert Counter(homes) == {"a": 5, "b": 5, "c": 5}


def test_two_choosers_that_know_nothing_of_each_other_place_a_group_alike():
    for number in range(20):
        prefix = PromptPrefix.of(_body("rules", f"task {number}"))
        first, second = (_choose(_chooser(), prefix=prefix, session="s") for _ in range(2))
        assert first.replica_id == second.replica_id


def test_a_nameless_conversation_that_goes_on_finds_its_replica():
    """Also where the samples of its group are spread, as soon as it has said more than they."""
    chooser = _chooser(group_slack=0, group_ratio=0.0)
    turns = {one: ["rules", "task", f"{one}'s idea", f"result for {one}"] for one in "xyz"}
    homes = {}
    for one, said in turns.items():
        homes[one] = _choose(chooser, weight=4, prefix=PromptPrefix.of(_body(*said))).replica_id
    assert len(set(homes.values())) == 3
    for _ in range(3):
        for one, said in turns.items():
            said += [f"{one} thinks", "another result"]
            choice = _choose(chooser, prefix=PromptPrefix.of(_body(*said)))
            assert (choice.replica_id, choice.kind) == (homes[one], "hit")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "x"},
        {"messages": [None, 3]},
        {"messages": [{"role": ["user"]}]},
        {"prompt": 7},
        {"prompt": ["a", {"b": 1}]},
    ],
)
def test_any_body_has_an_opening_and_its_equals_have_the_same(body):
    assert PromptPrefix.of(body) == PromptPrefix.of(dict(body))


def test_prompts_of_another_model_or_another_task_begin_differently():
    bodies = [
        _body("rules", "task"),
        _body("rules", "other"),
        {**_body("rules", "task"), "model": "m"},
        {"prompt": "task"},
        {"prompt": [1, 2]},
    ]
    assert len({PromptPrefix.of(body).group for body in bodies}) == len(bodies)


def test_a_session_whose_home_is_gone_moves_and_stays_at_the_new_home():
    chooser = _chooser()
    home = _choose(chooser, session="s").replica_id
    rest = [replica for replica in THREE if replica != home]
    moved = _choose(chooser, rest, session="s")
    assert moved.kind == "moved"
    assert _choose(chooser, session="s").replica_id == moved.replica_id


def test_the_session_table_is_bounded_and_forgets_the_idle():
    chooser = _chooser(max_sessions=2, session_idle_s=10)
    for session in ("one", "two", "one", "three"):
        _choose(chooser, session=session)
    assert len(chooser.homes) == 2
    assert _choose(chooser, session="one").kind == "hit"
    assert _choose(chooser, session="two").kind == "new"
    assert _choose(chooser, session="one", now=11.0).kind == "new"
    assert len(chooser.homes) == 1


def _fail(chooser, replica, times, now=0.0):
    for _ in range(times):
        chooser.health(replica).failed(now)


def test_consecutive_failures_eject_and_a_completed_request_forgives():
    chooser = _chooser(eject_after=3)
    _fail(chooser, "a", 2)
    chooser.health("a").completed(0.0)
    _fail(chooser, "a", 2)
    assert chooser.health("a").admits(0.0)
    _fail(chooser, "a", 1)
    assert not chooser.health("a").admits(0.0)
    assert {_choose(chooser).replica_id for _ in range(9)} == {"b", "c"}


def test_an_ejected_replica_gets_one_probe_at_a_time_and_longer_pauses():
    chooser = _chooser(eject_after=1, eject_s=1.0, eject_max_s=3.0)
    _fail(chooser, "a", 1)
    assert _choose(chooser, ["a"], now=0.9) is None
    for now, pause in ((1.0, 2.0), (3.0, 3.0), (6.0, 3.0)):
        assert chooser.next_chance(["a"]) == now
        choice = _choose(chooser, ["a"], now=now)
        assert choice.replica_id == "a"
        assert _choose(chooser, ["a"], now=now) is None
        chooser.health("a").over(choice.trial)
        _fail(chooser, "a", 1, now=now)
        assert chooser.next_chance(["a"]) == now + pause


def test_only_its_own_end_ends_a_trial():
    """Not that of a request that was there before the replica was ejected."""
    chooser = _chooser(eject_after=1, eject_s=1.0)
    before = _choose(chooser, ["a"])
    _fail(chooser, "a", 1)
    trial = _choose(chooser, ["a"], now=1.0)
    health = chooser.health("a")
    health.over(before.trial)
    assert not health.admits(1.0)
    health.failed(1.0)
    assert not health.admits(60.0)
    health.over(trial.trial)
    assert health.admits(60.0)


def test_what_runs_no_sequence_leaves_no_trace():
    """Neither of the session's home, nor of the turns, nor as an ejected replica's trial."""
    chooser = _chooser(eject_after=1, eject_s=1.0)
    home = _choose(chooser, session="s").replica_id
    (other, *_) = [replica for replica in THREE if replica != home]
    assert _choose(chooser, [other], session="s", weight=0).replica_id == other
    assert _choose(chooser, session="s").kind == "hit"
    turns = _chooser()
    order = [_choose(turns, weight=weight).replica_id for weight in (0, 1, 0, 1)]
    assert order == ["a", "a", "b", "b"]
    _fail(chooser, home, 1)
    assert _choose(chooser, [home], weight=0, now=1.0).trial is None
    assert _choose(chooser, [home], now=1.0).trial is not None


def test_conversations_without_a_name_push_no_session_out():
    chooser = _chooser(max_sessions=3)
    chooser.homes.shared = True
    _choose(chooser, session="s")
    for number in range(10):
        _choose(chooser, prefix=PromptPrefix.of(_body("rules", "task", f"idea {number}")))
    assert _choose(chooser, session="s").kind == "hit"
    assert chooser.homes.take_changes(10).keys() == {"s"}, "and other routers hear of none"


def test_a_router_that_is_alone_remembers_nothing_of_sessions_that_are_over():
    chooser = _chooser()
    for number in range(100):
        chooser.choose(["a"], session=str(number), weight=1, now=0.0)
        chooser.homes.forget(str(number))
    assert len(chooser.homes) == 0
    assert chooser.homes.take_changes(100) == {}


def test_a_replica_that_returns_starts_slowly_and_one_more_failure_ejects_it():
    chooser = _chooser(eject_after=3, eject_s=1.0, slow_start_s=10.0)
    _fail(chooser, "a", 3)
    assert _choose(chooser, ["a"], now=1.0)
    chooser.health("a").answered(1.0)
    chooser.release("a", 1)
    early = Counter(_choose(chooser, ["a", "b"], now=2.0).replica_id for _ in range(20))
    assert 0 < early["a"] <= 4
    late = Counter(_choose(chooser, ["a", "b"], now=11.0).replica_id for _ in range(40))
    assert late["a"] > late["b"]
    chooser.health("a").failed(12.0)
    assert not chooser.health("a").admits(12.0)


def test_a_trial_that_ends_well_without_a_first_token_brings_back_and_one_that_says_nothing_frees():
    chooser = _chooser(eject_after=1, eject_s=1.0)
    _fail(chooser, "a", 1)
    health = chooser.health("a")
    health.over(_choose(chooser, ["a"], now=1.0).trial)
    assert _choose(chooser, ["a"], now=1.0)
    health.completed(1.0)
    assert not health.ejected


def test_what_is_known_of_replicas_that_are_gone_is_forgotten():
    chooser = _chooser(eject_after=1)
    _fail(chooser, "a", 1)
    chooser.keep_only({"b"})
    assert chooser.health("a").admits(0.0)
