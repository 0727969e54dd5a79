"""Recorded sessions in a process of their own, which several routers may share."""

from typing import Any

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.peers import RemoteService
from services.protocol.errors import NotReady
from services.protocol.session import (
    SESSION_PREFIX,
    SessionEnding,
    SessionFields,
    SessionOffer,
    SessionState,
    SessionSummary,
    SessionTaken,
)
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.trajectories.history import History
from services.router.trajectories.session_store import CallStart
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.trajectory_tree import RecordedCall

_LOG = Log("router")
_ANSWER_S = 10.0
_RECORD_S = 30.0  # the process may be being replaced; the client's next call would wait as well


class SharedSessions:
    """The records as a router sees them that does not have them itself; see `Sessions`.

    Calls that need no record do not wait for it. A record that cannot be reached costs no client
    an answer: the call is then counted as lost.

    Args:
        config: the router's settings.
        peer: the process that has them.
        router: id of this router, so that what it has begun ends with it.
    """

    def __init__(self, config: RouterConfig, peer: RemoteService, router: str = "") -> None:
        self._config, self._peer, self._router = config, peer, router
        self._unended: dict[int, str] = {}

    async def begin(self, name: str | None, history: History | None = None) -> CallStart | None:
        """See `Sessions`."""
        if name is None:
            return None
        if not (self._config.record_sessions or name.startswith(SESSION_PREFIX)):
            return None
        return await self._ask("begin", name, history, self._router)

    async def end(self, name: str, number: int, call: RecordedCall | None) -> None:
        """See `Sessions`."""
        try:
            await self._peer.call("end", name, number, call, timeout_s=_RECORD_S)
        except NotReady as absence:
            RouterMetrics.session_calls.inc(tags={"kind": "lost"})
            _LOG.warning("session_call_lost", session=name, reason=str(absence))
            self._unended[number] = name
            return
        await self._end_others()

    async def _end_others(self) -> None:
        """Calls whose end the process did not hear would be open in their sessions for a day."""
        while self._unended:
            number, name = self._unended.popitem()
            try:
                await self._peer.call("end", name, number, None, timeout_s=_ANSWER_S)
            except NotReady:
                self._unended[number] = name
                return

    async def create(
        self, metadata: dict[str, str], offer: SessionOffer | None = None
    ) -> SessionSummary:
        """See `Sessions`."""
        return await self._ask("create", metadata, offer)

    async def take(self, run: str | None, task_id: str | None = None) -> SessionTaken:
        """See `Sessions`."""
        return await self._ask("take", run, task_id)

    async def until_offered(
        self, run: str | None, wait_s: float, task_id: str | None = None
    ) -> bool:
        """See `Sessions`."""
        wait_s = min(wait_s, self._config.session_poll_max_s)
        return await self._ask("until_offered", run, wait_s, task_id, extra_s=wait_s)

    async def offered_model(self, name: str | None) -> str | None:
        """See `Sessions`."""
        if name is None or not name.startswith(SESSION_PREFIX):
            return None
        return await self._ask("offered_model", name)

    async def add_reward(self, name: str, reward: float | list[float]) -> SessionSummary:
        """See `Sessions`."""
        return await self._ask("add_reward", name, reward)

    async def get(self, name: str, first: int = 0, count: int | None = None) -> SessionFields:
        """See `Sessions`."""
        return await self._ask("get", name, first, count)

    async def finish(self, name: str, ending: SessionEnding) -> SessionSummary:
        """See `Sessions`."""
        return await self._ask("finish", name, ending)

    async def delete(self, name: str) -> None:
        """See `Sessions`."""
        await self._ask("delete", name)

    async def listed(
        self, state: SessionState, after: int, limit: int, wait_s: float
    ) -> list[SessionSummary]:
        """See `Sessions`."""
        wait_s = min(wait_s, self._config.session_poll_max_s)
        return await self._ask("listed", state, after, limit, wait_s, extra_s=wait_s)

    async def keep_response(
        self, response: dict[str, Any], new: list[dict[str, Any]], earlier: str | None
    ) -> None:
        """See `Sessions`."""
        await self._ask("keep_response", response, new, earlier, self._router)

    async def response(self, name: str) -> dict[str, Any]:
        """See `Sessions`."""
        return await self._ask("response", name)

    async def response_items(self, name: str) -> list[dict[str, Any]]:
        """See `Sessions`."""
        return await self._ask("response_items", name)

    async def delete_response(self, name: str) -> None:
        """See `Sessions`."""
        await self._ask("delete_response", name)

    async def _ask(self, method: str, *args: Any, extra_s: float = 0.0) -> Any:
        try:
            return await self._peer.call(method, *args, timeout_s=_ANSWER_S + extra_s)
        except NotReady as absence:
            message = f"recorded sessions cannot be reached: {absence}"
            raise RequestFailed(503, "sessions_unavailable", message, retry_after_s=1) from None


SessionRecords = Sessions | SharedSessions
"""The records in this process, or in one of their own."""
