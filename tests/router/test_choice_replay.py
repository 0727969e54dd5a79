"""A trace of agents, played again: named and nameless sessions, and groups without turns.

The trace (`agents_trace.jsonl`) holds when each request began and ended on some earlier
router, who asked, and the keys of its prompt's beginnings; no text.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from services.router.config import RouterConfig
from services.router.placement.choice import ReplicaChooser
from services.router.request.needs import PromptPrefix

EVENTS = [
    json.loads(line)
    for line in Path(__file__).with_name("agents_trace.jsonl").read_text().splitlines()
]
REPLICAS = [f"replica-{number}" for number in range(8)]


class _Replay:
    """Plays the trace; replicas named in `gone` are away between two times."""

    def __init__(self, chooser, gone=frozenset(), since=0.0, until=0.0):
        self.chooser, self.choices, self.spread = chooser, {}, 0
        for event in EVENTS:
            if "ends" in event:
                chooser.release(self.choices[event["ends"]].replica_id, 1)
                continue
            away = gone if since <= event["at"] < until else frozenset()
            self.choices[event["begins"]] = chooser.choose(
                [replica for replica in REPLICAS if replica not in away],
                session=event.get("session"),
                weight=1,
                now=event["at"],
                prefix=PromptPrefix(
                    group=event.get("group"),
                    whole=event.get("whole"),
                    earlier=tuple(event.get("earlier", ())),
                ),
            )
            loads = [chooser.load(replica) for replica in REPLICAS]
            self.spread = max(self.spread, max(loads) - min(loads))

    def kinds(self, chosen):
        return Counter(
            self.choices[event["begins"]].kind
            for event in EVENTS
            if "begins" in event and chosen(event)
        )


def test_every_request_of_the_trace_is_placed_and_given_back():
    replay = _Replay(ReplicaChooser(RouterConfig()))
    assert replay.chooser.counts == {}
    assert len(replay.choices) == sum("begins" in event for event in EVENTS)
    assert {choice.replica_id for choice in replay.choices.values()} == set(REPLICAS)


def test_sessions_of_the_trace_never_leave_home_and_nobody_is_overloaded():
    config = RouterConfig()
    replay = _Replay(ReplicaChooser(config))
    kinds = replay.kinds(lambda event: "session" in event)
    sessions = {event["session"] for event in EVENTS if "session" in event}
    assert kinds == {"new": len(sessions), "hit": sum(kinds.values()) - len(sessions)}
    assert replay.spread <= config.spill_threshold


def test_nameless_conversations_of_the_trace_are_followed_from_their_third_call():
    replay = _Replay(ReplicaChooser(RouterConfig()))
    later = replay.kinds(lambda event: "session" not in event and event.get("earlier"))
    assert later["hit"] >= 0.95 * sum(later.values()) > 0


def test_samples_of_one_group_of_the_trace_share_few_replicas():
    replay = _Replay(ReplicaChooser(RouterConfig()))
    homes: dict[str, set[str]] = {}
    for event in EVENTS:
        if "begins" in event and "session" not in event and "whole" not in event:
            homes.setdefault(event["group"], set()).add(replay.choices[event["begins"]].replica_id)
    assert sum(map(len, homes.values())) / len(homes) <= 3


def test_the_same_trace_is_placed_in_the_same_way_again():
    first, second = (_Replay(ReplicaChooser(RouterConfig())) for _ in range(2))
    assert first.choices == second.choices


def test_when_a_replica_goes_its_sessions_move_once_and_stay():
    replay = _Replay(ReplicaChooser(RouterConfig()), {"replica-0"}, since=20.0, until=40.0)
    homes: dict[str, list[str]] = {}
    for event in EVENTS:
        if "session" in event:
            homes.setdefault(event["session"], []).append(
                replay.choices[event["begins"]].replica_id
            )
    moves = {session: sum(a != b for a, b in pairwise(path)) for session, path in homes.items()}
    assert max(moves.values()) == 1
    moved = [session for session, count in moves.items() if count]
    assert moved
    assert all(homes[session][0] == "replica-0" for session in moved)
