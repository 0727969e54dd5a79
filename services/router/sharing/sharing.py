"""One router's part in the shared table: a task that tells and hears, beside all requests."""

import asyncio
import secrets
import time
from typing import Protocol

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.errors import NotReady
from services.router.config import RouterConfig
from services.router.placement.reservations import Reservations
from services.router.sharing.shared_table import SyncRequest, SyncResponse
from services.side_by_side import cancel

_LOG = Log("router")
_MOST_HOMES = 10_000
"""Homes sent at a time, so that one exchange stays short."""


class ExchangePoint(Protocol):
    """Where the shared table is."""

    async def exchange(self, request: SyncRequest) -> SyncResponse:
        """See `SharedTable`.

        Raises:
            NotReady: the table cannot be reached now.
        """


class Sharing:
    """Keeps one router's chooser in step with those of the others."""

    def __init__(
        self, config: RouterConfig, reservations: Reservations, point: ExchangePoint
    ) -> None:
        self._config, self._reservations, self._point = config, reservations, point
        self._router_id = secrets.token_hex(8)
        self._unsaid: dict[str, str | None] = {}
        self._unsaid_floors: dict[str, int] = {}
        self._table_id, self._revision = "", 0
        self._heard_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to exchange; needs a running event loop."""
        self._task = asyncio.create_task(self._run(), name="sharing")

    async def stop(self) -> None:
        """Stop and wait until the task has ended; the counts of this router expire."""
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            try:
                await self.exchange()
            except NotReady as absence:
                self._alone("unreachable", str(absence))
            except Exception:  # noqa: BLE001  the loop's outer edge; without it none is heard again
                _LOG.exception("sharing_failed")
                self._alone("failed", "see the log")
            await asyncio.sleep(self._config.share_s)

    async def exchange(self) -> None:
        """Tell and hear once.

        Raises:
            NotReady: the table cannot be reached now; nothing is lost by it.
        """
        chooser = self._reservations.chooser
        self._unsaid |= chooser.homes.take_changes(_MOST_HOMES - len(self._unsaid))
        self._unsaid_floors = self._unsaid_floors or self._reservations.interruptions.take_news()
        response = await self._point.exchange(
            SyncRequest(
                router_id=self._router_id,
                counts=chooser.counts,
                homes=self._unsaid,
                floors=self._unsaid_floors,
                table_id=self._table_id,
                revision=self._revision,
            )
        )
        self._unsaid, self._unsaid_floors = {}, {}
        if self._table_id not in ("", response.table_id):
            # A new table: only this router can send again what the old one knew.
            chooser.homes.all_changed()
        self._table_id, self._revision = response.table_id, response.revision
        self._heard_at = time.monotonic()
        for session, home in response.homes.items():
            chooser.homes.hear(session, home, self._heard_at)
        for session, floor in response.floors.items():
            self._reservations.interruptions.hear(session, floor)
        chooser.elsewhere = response.counts
        self._reservations.queue.advance()

    def _alone(self, kind: str, reason: str) -> None:
        RouterMetrics.share_failures.inc()
        silence = time.monotonic() - self._heard_at
        if silence > self._config.share_expire_s and self._reservations.chooser.elsewhere:
            _LOG.warning("router_decides_alone", kind=kind, reason=reason, silence_s=silence)
            self._reservations.chooser.elsewhere = {}
            self._reservations.queue.advance()
