"""How long a campaign waits until all is as it was."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.chaos.campaign import Campaign
from services.chaos.observation import Leases, Observation


async def test_where_nobody_calls_nobody_waits_for_an_answer() -> None:
    whole = Leases(at_s=1.0, leased=frozenset({"r"}), newest_version=1, bus_id="a")
    seen = Observation(expected=1, leases=[whole])
    nothing: Any = None
    watch: Any = SimpleNamespace(run_over=True)
    campaign = Campaign(nothing, seen, lambda: 2.0, watch, nothing)
    await asyncio.wait_for(campaign.until_whole(60.0, calls=False), 60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(campaign.until_whole(60.0, calls=True), 0.3)
