"""Recorded sessions in a process that several routers share."""

from typing import Any

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.peers import RemoteService
from services.protocol.errors import NotReady
from services.protocol.session import (
    SESSION_PREFIX,
    SessionFields,
    SessionState,
    SessionSummary,
)
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.trajectories.trajectory_tree import RecordedCall

_LOG = Log("router")
_ANSWER_S = 10.0


class SharedSessions:
    """The records as every one of several routers sees them; see `SessionRecords`.

    Calls that need no record do not wait for it, and a record that cannot be reached costs
    nobody an answer: the call is then counted as lost.
    """

    def __init__(self, config: RouterConfig, peer: RemoteService) -> None:
        self._config, self._peer = config, peer

    async def begin(self, name: str | None) -> int | None:
        """See `SessionRecords`."""
        if name is None:
            return None
        if not (self._config.record_sessions or name.startswith(SESSION_PREFIX)):
            return None
        number: int | None = await self._ask("begin", name)
        return number

    async def end(self, name: str, number: int, call: RecordedCall | None) -> None:
        """See `SessionRecords`."""
        try:
            await self._peer.call("end", name, number, call, timeout_s=_ANSWER_S)
        except NotReady as absence:
            RouterMetrics.session_calls.inc(tags={"kind": "lost"})
            _LOG.warning("session_call_lost", session=name, reason=str(absence))

    async def create(self, metadata: dict[str, str]) -> SessionSummary:
        """See `SessionRecords`."""
        made: SessionSummary = await self._ask("create", metadata)
        return made

    async def get(self, name: str, first: int = 0, count: int | None = None) -> SessionFields:
        """See `SessionRecords`."""
        found: SessionFields = await self._ask("get", name, first, count)
        return found

    async def finish(self, name: str, reward: float | None) -> SessionSummary:
        """See `SessionRecords`."""
        finished: SessionSummary = await self._ask("finish", name, reward)
        return finished

    async def delete(self, name: str) -> None:
        """See `SessionRecords`."""
        await self._ask("delete", name)

    async def listed(
        self, state: SessionState, after: int, limit: int, wait_s: float
    ) -> list[SessionSummary]:
        """See `SessionRecords`."""
        wait_s = min(wait_s, self._config.session_poll_max_s)
        found: list[SessionSummary] = await self._ask(
            "listed", state, after, limit, wait_s, extra_s=wait_s
        )
        return found

    async def _ask(self, method: str, *args: Any, extra_s: float = 0.0) -> Any:
        try:
            return await self._peer.call(method, *args, timeout_s=_ANSWER_S + extra_s)
        except NotReady as absence:
            message = f"recorded sessions cannot be reached: {absence}"
            raise RequestFailed(503, "sessions_unavailable", message, retry_after_s=1) from None
