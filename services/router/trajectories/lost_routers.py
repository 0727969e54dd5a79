"""Routers that have died, found out where they have begun something."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

LOOK_S = 5.0

RouterIds = Callable[[], Awaitable[Collection[str] | None]]
"""Ids of the routers that there are; None or nothing: that is not known now."""


class LostRouters:
    """Looks now and then whether the routers are still there that have begun something.

    A router is there before it begins anything. So one that is not among those which are there
    later has died.

    Args:
        there: see `RouterIds`.
        waited_for: those that have begun something which has not ended.
        lost: is told a router that has died.
    """

    def __init__(
        self,
        there: RouterIds,
        waited_for: Callable[[], Collection[str]],
        lost: Callable[[str], None],
    ) -> None:
        self._there, self._waited_for, self._lost = there, waited_for, lost
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look from now on, for as long as something is waited for."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="lost_routers")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            routers = set(self._waited_for())
            if not routers:
                return
            there = await self._there()
            for router in routers.difference(there) if there else ():
                self._lost(router)
