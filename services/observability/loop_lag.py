"""How late an event loop comes to its work: a service's own sign that it is held up."""

import asyncio
from typing import NoReturn

from ray.util.metrics import Histogram


async def observe_loop_lag(lag: Histogram, *, period_s: float) -> NoReturn:
    """Measure how late a short sleep ends, every so many seconds, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period_s
        await asyncio.sleep(period_s)
        lag.observe(max(0.0, loop.time() - due))
