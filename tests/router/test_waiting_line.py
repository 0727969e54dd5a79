"""Who is next."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.waiting_line import Ticket, WaitingLine


def _serve_all(line):
    served = []
    while (ticket := line.first) is not None:
        line.serve(ticket)
        served.append(ticket)
    return served


def _line(*tickets):
    line = WaitingLine()
    for ticket in tickets:
        line.enter(ticket)
    return line


def test_one_who_asks_for_much_does_not_keep_the_others_waiting():
    greedy = [Ticket(flow="greedy", content=number) for number in range(50)]
    modest = [Ticket(flow=name) for name in ("one", "two")]
    order = _serve_all(_line(*greedy, *modest))
    assert [ticket.flow for ticket in order[:3]] == ["greedy", "one", "two"]
    assert [t.content for t in order if t.flow == "greedy"] == list(range(50))


def test_lower_priority_goes_first_and_what_was_begun_before_all():
    tickets = [Ticket(priority=1), Ticket(), Ticket(priority=-1), Ticket(priority=9, urgent=True)]
    assert _serve_all(_line(*tickets)) == [tickets[3], tickets[2], tickets[1], tickets[0]]


def test_whoever_leaves_is_not_served_and_may_leave_twice():
    first, second = Ticket(flow="a"), Ticket(flow="b")
    line = _line(first, second)
    line.leave(first)
    line.leave(first)
    assert (len(line), list(line), line.first) == (1, [second], second)
    line.serve(second)
    assert line.first is None
    assert not line


tickets = st.builds(Ticket, priority=st.integers(-1, 1), flow=st.sampled_from("abc"))


@given(coming=st.lists(tickets, max_size=60), leaving=st.sets(st.integers(0, 59)))
@settings(max_examples=60, deadline=None)
def test_everybody_who_stays_is_served_once_and_flows_take_turns(coming, leaving):
    line = _line(*coming)
    stays = [ticket for number, ticket in enumerate(coming) if number not in leaving]
    for ticket in coming:
        if ticket not in stays:
            line.leave(ticket)
    assert len(line) == len(stays)
    order = _serve_all(line)
    assert Counter(map(id, order)) == Counter(map(id, stays))
    for rank in {ticket.rank for ticket in stays}:
        flows = [ticket.flow for ticket in order if ticket.rank == rank]
        waiting = Counter(flows)
        for at, flow in enumerate(flows):
            others = {name for name in waiting if waiting[name] and name != flow}
            # Nobody is served again before every other flow that waits.
            following = flows[at + 1 :]
            again = following.index(flow) if flow in following else len(following)
            assert others <= set(following[:again]) | {f for f in others if not waiting[f]}
            waiting[flow] -= 1
