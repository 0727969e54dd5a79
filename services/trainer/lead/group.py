"""The rank group as the service sees it."""

import asyncio
from typing import Any, Protocol

from services.trainer.rank.rank_messages import RankModel


class Group(Protocol):
    """What the service needs of a `RankGroup`."""

    name: str
    lost: asyncio.Event
    model: RankModel

    async def call(self, method: str, *args: Any, timeout_s: float) -> list[Any]:
        """Call every rank; see `RankGroup.call`."""

    async def close(self) -> None:
        """Kill the ranks."""
