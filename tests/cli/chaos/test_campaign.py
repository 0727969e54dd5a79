"""How long a campaign waits until all is as it was."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millrace_tools.chaos.campaign import Campaign, clock
from millrace_tools.chaos.observation import InjectedFault, Leases, Observation
from millrace_tools.chaos.script import FaultSpec


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
