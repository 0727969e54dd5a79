"""Recorded sessions by id, with clocks and waits: in this process, or shared by several routers."""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.peers import RemoteService
from services.protocol.errors import NotReady
from services.protocol.router import SESSION_HEADER
from services.protocol.session import (
    SESSION_PREFIX,
    SessionFields,
    SessionState,
    SessionSummary,
)
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, bad_request
from services.router.trajectories.session_store import Session, SessionStore
from services.router.trajectories.stored_responses import StoredResponses
from services.router.trajectories.trajectory_tree import RecordedCall, Turn

_LOG = Log("router")
_ANSWER_S = 10.0
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Sessions:
    """The records in this process.

    A session is recorded if POST /v1/sessions made it or, with `record_sessions`, once a
    call names it. The id of one that was made is never taken for an ordinary name: if its
    record is gone, its calls are refused, not silently left out.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._store = SessionStore(config)
        self._responses = StoredResponses(
            max_responses=config.max_stored_responses,
            max_bytes=config.max_stored_response_mb << 20,
            idle_s=config.session_idle_s,
        )
        self._news = asyncio.Event()
        self._counted: dict[str, int] = {}

    async def begin(self, name: str | None) -> int | None:
        """A call that names a session begins.

        Returns:
            The call's number in a recorded session, None if it is not recorded.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 `session_finished`, 400 for a name
                under which no session can be recorded.
        """
        if name is None:
            return None
        now = time.monotonic()
        self._store.expire(now)
        session = self._store.find(name)
        if session is None:
            if name.startswith(SESSION_PREFIX):
                self._store.get(name)
            if not self._config.record_sessions:
                return None
            if not _NAME.fullmatch(name):
                rule = "1 to 128 letters, digits, or any of _ . : -"
                raise bad_request(f"{name[:200]!r} cannot be recorded: use {rule}", SESSION_HEADER)
            session = self._create({}, name)
        return self._store.begin(session, now=now)

    async def end(self, name: str, number: int, call: RecordedCall | None) -> None:
        """A call that began is over; without a record it left nothing."""
        kind = self._store.end(name, number, call, now=time.monotonic())
        RouterMetrics.session_calls.inc(tags={"kind": kind or "unrecorded"})
        self._show()

    async def create(self, metadata: dict[str, str]) -> SessionSummary:
        """Make a session."""
        return self._create(metadata, None).summary()

    async def get(self, name: str, first: int = 0, count: int | None = None) -> SessionFields:
        """A session with its trajectories, or with some of them.

        Args:
            name: the session.
            first: number of the first one, from 0.
            count: how many at most; None: all that follow.

        Raises:
            RequestFailed: 404 `session_not_found`, 413 `session_too_large` for more at once
                than `max_returned_tokens` allows.
        """
        session = self._found(name)
        summary, reading = session.summary(), session.tree.reading()
        bound = self._config.max_returned_tokens

        def read() -> SessionFields:
            leaves = reading.leaves()[first : None if count is None else first + count]
            _check_size(leaves, bound)
            return SessionFields.of(summary, reading.trajectories(leaves))

        # It takes seconds where there are many, and streams must not wait for that.
        return await asyncio.to_thread(read)

    async def finish(self, name: str, reward: float | None) -> SessionSummary:
        """Close a session.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 if it is finished with another reward.
        """
        session = self._found(name)
        self._store.finish(session, reward, now=time.monotonic(), wall=time.time())
        self._news.set()
        self._news = asyncio.Event()
        return session.summary()

    async def delete(self, name: str) -> None:
        """Forget a session that was read.

        Raises:
            RequestFailed: 404 `session_not_found`.
        """
        self._store.delete(self._found(name))
        self._show()

    async def listed(
        self, state: SessionState, after: int, limit: int, wait_s: float
    ) -> list[SessionSummary]:
        """Sessions of one state; if none has finished after the cursor, wait for one."""
        if state == "open":
            return [session.summary() for session in self._store.open_ones(limit)]
        deadline = time.monotonic() + min(wait_s, self._config.session_poll_max_s)
        while not (found := self._store.finished(after, limit)):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                break
        return [session.summary() for session in found]

    async def keep_response(
        self, response: dict[str, Any], new: list[dict[str, Any]], earlier: str | None
    ) -> None:
        """Keep a response of the Responses API; see `StoredResponses.put`."""
        self._responses.put(response, new, earlier, now=time.monotonic())

    async def response(self, name: str) -> dict[str, Any]:
        """A response that was kept.

        Raises:
            RequestFailed: 404 `response_not_found`.
        """
        return self._responses.get(name, now=time.monotonic())

    async def response_items(self, name: str) -> list[dict[str, Any]]:
        """The items of a response and of all that it goes on from.

        Raises:
            RequestFailed: 404 `response_not_found`.
        """
        return self._responses.history(name, now=time.monotonic())

    async def delete_response(self, name: str) -> None:
        """Forget a response.

        Raises:
            RequestFailed: 404 `response_not_found`.
        """
        self._responses.get(name, now=time.monotonic())
        self._responses.remove(name)

    def _create(self, metadata: dict[str, str], name: str | None) -> Session:
        session = self._store.create(
            metadata, now=time.monotonic(), wall=time.time(), session_id=name
        )
        self._show()
        return session

    def _found(self, name: str) -> Session:
        self._store.expire(time.monotonic())
        return self._store.get(name)

    def _show(self) -> None:
        RouterMetrics.recorded_sessions.set(len(self._store))
        RouterMetrics.recorded_tokens.set(self._store.tokens)
        for reason, count in self._store.dropped.items():
            RouterMetrics.sessions_dropped.inc(
                count - self._counted.get(reason, 0), {"reason": reason}
            )
            self._counted[reason] = count


def _check_size(leaves: Sequence[Turn], bound: int) -> None:
    """Refuse what is too much for one answer; a single trajectory never is."""
    tokens = sum(leaf.depth for leaf in leaves)
    if tokens <= bound or len(leaves) == 1:
        return
    some = max(1, bound // max(leaf.depth for leaf in leaves))
    message = (
        f"{len(leaves)} trajectories of {tokens} tokens are more than one answer may hold "
        f"({bound}): read some at a time, with ?first=0&count={some} and so on"
    )
    raise RequestFailed(413, "session_too_large", message, param="count")


class SharedSessions:
    """The records as every one of several routers sees them; see `Sessions`.

    Calls that need no record do not wait for it. A record that cannot be reached costs no client
    an answer: the call is then counted as lost.
    """

    def __init__(self, config: RouterConfig, peer: RemoteService) -> None:
        self._config, self._peer = config, peer

    async def begin(self, name: str | None) -> int | None:
        """See `Sessions`."""
        if name is None:
            return None
        if not (self._config.record_sessions or name.startswith(SESSION_PREFIX)):
            return None
        return await self._ask("begin", name)

    async def end(self, name: str, number: int, call: RecordedCall | None) -> None:
        """See `Sessions`."""
        try:
            await self._peer.call("end", name, number, call, timeout_s=_ANSWER_S)
        except NotReady as absence:
            RouterMetrics.session_calls.inc(tags={"kind": "lost"})
            _LOG.warning("session_call_lost", session=name, reason=str(absence))

    async def create(self, metadata: dict[str, str]) -> SessionSummary:
        """See `Sessions`."""
        return await self._ask("create", metadata)

    async def get(self, name: str, first: int = 0, count: int | None = None) -> SessionFields:
        """See `Sessions`."""
        return await self._ask("get", name, first, count)

    async def finish(self, name: str, reward: float | None) -> SessionSummary:
        """See `Sessions`."""
        return await self._ask("finish", name, reward)

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
        await self._ask("keep_response", response, new, earlier)

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
"""The records in this process, or in one that several routers share."""
