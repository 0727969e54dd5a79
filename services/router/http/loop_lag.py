"""How late the event loop comes to what is due: the router's own sign of overload."""

import asyncio

from services.observability.metrics import RouterMetrics
from services.side_by_side import cancel

_PERIOD_S = 0.5


class LoopLag:
    """A background task that observes how much longer a short sleep takes than it should."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to observe the running event loop."""
        self._task = asyncio.create_task(self._watch(), name="loop_lag")

    async def stop(self) -> None:
        """Stop and wait until the task has ended."""
        await cancel(self._task)
        self._task = None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            RouterMetrics.loop_lag.observe(max(0.0, loop.time() - due))
