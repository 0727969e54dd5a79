"""How long a campaign waits until all is as it was."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millrace_tools.chaos.campaign import Campaign, clock
from millrace_tools.chaos.observation import InjectedFault, Leases, Observation
from millrace_tools.chaos.script import FaultSpec, Script
from services.protocol.weights.weight_bus import ReplicaState


async def test_where_nobody_calls_nobody_waits_for_an_answer() -> None:
    whole = Leases(at_s=1.0, leased=frozenset({"r"}), newest_version=1, bus_id="a")
    seen = Observation(expected=1, leases=[whole])
    nothing: Any = None
    monitor: Any = SimpleNamespace(run_over=True, observation=seen, clock=lambda: 2.0)
    campaign = Campaign(nothing, monitor, nothing)
    await asyncio.wait_for(campaign.until_recovered(60.0, calls=False), 300)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(campaign.until_recovered(60.0, calls=True), 0.3)


async def test_nothing_is_whole_before_every_fault_is_over_and_lost_leases_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace_tools.chaos.campaign._SHOWN_S", 0.2)
    whole = Leases(at_s=0.0, leased=frozenset({"r"}), newest_version=1, bus_id="a")
    freeze = {"at": 0, "fault": "freeze", "target": "rank", "for": 0.1}
    injected = InjectedFault(at_s=0.0, spec=FaultSpec.model_validate(freeze), victim="rank 1")
    seen = Observation(expected=1, leases=[whole], faults=[injected])
    nothing: Any = None
    now = clock()
    monitor: Any = SimpleNamespace(run_over=True, observation=seen, clock=now)
    campaign = Campaign(nothing, monitor, nothing)
    await asyncio.wait_for(campaign.until_recovered(60.0, calls=False), 300)
    assert now() >= 0.3


def states(*leased: str, **states: ReplicaState) -> Leases:
    held = frozenset(states.values())
    return Leases(at_s=0.0, leased=frozenset(leased), newest_version=1, bus_id="a", states=held)


async def test_a_fault_waits_for_its_part_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, now = Observation(expected=2, leases=[states("r", "s")]), clock()
    asked: list[Any] = []
    injected = asyncio.Event()

    class Targets:
        async def of(self, spec: FaultSpec) -> list[Any]:
            asked.append(seen.leases[-1])
            injected.set()
            return []

    targets: Any = Targets()
    monitor: Any = SimpleNamespace(run_over=False, observation=seen, clock=now)
    campaign = Campaign(targets, monitor, lambda fault: None)
    lent, waking = states(r=ReplicaState.LENT), states("s", r=ReplicaState.CATCHING_UP)
    for when, shown in (("lent", lent), ("waking", waking), ("sampling", states("r", "s"))):
        fault = {"at": 0, "fault": "kill", "target": "engine", "when": when}
        script = Script.model_validate({"faults": [fault]})
        injected.clear()
        running = asyncio.create_task(campaign.scripted(script, 0))
        await asyncio.sleep(0)
        if when != "sampling":
            assert not injected.is_set()
        seen.leases.append(shown)
        await asyncio.wait_for(running, 60)
        assert asked[-1] is shown
    monkeypatch.setattr("millrace_tools.chaos.campaign._TURN_S", 0.0)
    await campaign.scripted(Script.model_validate({"faults": [fault | {"when": "lent"}]}), 0)
    assert "not lent" in seen.faults[-1].refused
