"""Many workspaces at once, then a hostile program in one: again and again on one service."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.soak.engine import Findings
from benchmarks.soak.workspace_crowd import crowd
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.workspaces.over_time import hostile

SIEGE_S = 30.0
Round = Mapping[str, Any]
"""What was seen of `crowd` and `hostile`, empty where they were not asked for."""


async def one_round(
    service: Workspaces, options: argparse.Namespace, number: int, findings: Findings
) -> dict[str, Any]:
    """Both of them, with a share of the minutes of the hostile one."""
    found: dict[str, Any] = {"crowd": {}, "hostile": {}}
    if options.at_once:
        found["crowd"] = await crowd(service, options.at_once, findings)
    if options.hostile_minutes:
        minutes = options.hostile_minutes / options.rounds
        seed = options.seed + number
        found["hostile"] = await hostile(service, minutes * 60, seed, siege_s=SIEGE_S)
        found["hostile"]["minutes"] = minutes
        for surprise in found["hostile"].pop("surprises"):
            findings.wrong("hostile", surprise)
    return found


def opened(one: Round) -> int:
    """Workspaces of a round: those at once, the hostile one and its neighbour, and one in the place
    of each that its own program ended."""
    crowded = int(one["crowd"].get("open", 0))
    if not one["hostile"]:
        return crowded
    ends = one["hostile"]["ends"]
    return crowded + 2 + sum(many for end, many in ends.items() if end.startswith("gone"))


def together(rounds: Sequence[Round]) -> dict[str, Any]:
    """The figures of all rounds as of one: the last crowd, and the sums of the hostile parts."""
    crowds = [one["crowd"] for one in rounds if one["crowd"]]
    attacks = [one["hostile"] for one in rounds if one["hostile"]]
    if not attacks:
        return {"crowd": crowds[-1] if crowds else {}, "hostile": {}}
    neighbours = [one["neighbour"] for one in attacks]
    first, last = (
        one["milliseconds_first_and_last_tenth"] for one in (neighbours[0], neighbours[-1])
    )
    ends: Counter[str] = Counter()
    for one in attacks:
        ends.update(one["ends"])
    return {
        "crowd": crowds[-1] if crowds else {},
        "hostile": {
            "minutes": round(sum(one["minutes"] for one in attacks), 2),
            "attacks": sum(one["attacks"] for one in attacks),
            "ends": dict(ends),
            "neighbour": {
                "calls": sum(one["calls"] for one in neighbours),
                "milliseconds_first_and_last_tenth": [first[0], last[1]],
                "slowest_milliseconds": max(one["slowest_milliseconds"] for one in neighbours),
            },
        },
    }
