"""How long a campaign waits until all is as it was."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millrace_tools.chaos.campaign import Campaign, clock
from millrace_tools.chaos.observation import Leases, Observation, Struck
from millrace_tools.chaos.script import Deed


async def test_where_nobody_calls_nobody_waits_for_an_answer() -> None:
    whole = Leases(at_s=1.0, leased=frozenset({"r"}), newest_version=1, bus_id="a")
    seen = Observation(expected=1, leases=[whole])
    nothing: Any = None
    watch: Any = SimpleNamespace(run_over=True)
    campaign = Campaign(nothing, seen, lambda: 2.0, watch, nothing)
    await asyncio.wait_for(campaign.until_whole(60.0, calls=False), 60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(campaign.until_whole(60.0, calls=True), 0.3)


async def test_nothing_is_whole_before_every_fault_is_over_and_lost_leases_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace_tools.chaos.campaign._SHOWN_S", 0.2)
    whole = Leases(at_s=0.0, leased=frozenset({"r"}), newest_version=1, bus_id="a")
    freeze = {"at": 0, "fault": "freeze", "target": "rank", "for": 0.1}
    struck = Struck(at_s=0.0, deed=Deed.model_validate(freeze), victim="rank 1")
    seen = Observation(expected=1, leases=[whole], struck=[struck])
    nothing: Any = None
    watch: Any = SimpleNamespace(run_over=True)
    now = clock()
    campaign = Campaign(nothing, seen, now, watch, nothing)
    await asyncio.wait_for(campaign.until_whole(60.0, calls=False), 60)
    assert now() >= 0.3
