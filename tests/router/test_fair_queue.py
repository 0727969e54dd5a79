"""Who is next."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.placement.reservation_queue import FairQueue, Waiter


def _serve_all(queue):
    served = []
    while (waiter := queue.first) is not None:
        queue.serve(waiter)
        served.append(waiter)
    return served


def _queue(*waiters):
    queue = FairQueue()
    for waiter in waiters:
        queue.enter(waiter)
    return queue


def test_one_who_asks_for_much_does_not_keep_the_others_waiting():
    greedy = [Waiter(flow="greedy", content=number) for number in range(50)]
    modest = [Waiter(flow=name) for name in ("one", "two")]
    order = _serve_all(_queue(*greedy, *modest))
    assert [waiter.flow for waiter in order[:3]] == ["greedy", "one", "two"]
    assert [t.content for t in order if t.flow == "greedy"] == list(range(50))


def test_lower_priority_goes_first_and_what_was_begun_before_all():
    waiters = [Waiter(priority=1), Waiter(), Waiter(priority=-1), Waiter(priority=9, urgent=True)]
    assert _serve_all(_queue(*waiters)) == [waiters[3], waiters[2], waiters[1], waiters[0]]


def test_whoever_leaves_is_not_served_and_may_leave_twice():
    first, second = Waiter(flow="a"), Waiter(flow="b")
    queue = _queue(first, second)
    queue.leave(first)
    queue.leave(first)
    assert (len(queue), list(queue), queue.first) == (1, [second], second)
    queue.serve(second)
    assert queue.first is None
    assert not queue


waiters = st.builds(Waiter, priority=st.integers(-1, 1), flow=st.sampled_from("abc"))


@given(coming=st.lists(waiters, max_size=60), leaving=st.sets(st.integers(0, 59)))
@settings(max_examples=60)
def test_everybody_who_stays_is_served_once_and_flows_take_turns(coming, leaving):
    queue = _queue(*coming)
    stays = [waiter for number, waiter in enumerate(coming) if number not in leaving]
    for waiter in coming:
        if waiter not in stays:
            queue.leave(waiter)
    assert len(queue) == len(stays)
    order = _serve_all(queue)
    assert Counter(map(id, order)) == Counter(map(id, stays))
    for rank in {waiter.rank for waiter in stays}:
        flows = [waiter.flow for waiter in order if waiter.rank == rank]
        waiting = Counter(flows)
        for at, flow in enumerate(flows):
            others = {name for name in waiting if waiting[name] and name != flow}
            # Nobody is served again before every other flow that waits.
            following = flows[at + 1 :]
            again = following.index(flow) if flow in following else len(following)
            assert others <= set(following[:again]) | {f for f in others if not waiting[f]}
            waiting[flow] -= 1
