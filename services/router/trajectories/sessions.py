"""Recorded sessions as the router's HTTP side uses them: by id, with clocks and waits."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

from services.observability.metrics import RouterMetrics
from services.protocol.router import SESSION_HEADER
from services.protocol.session import (
    SESSION_PREFIX,
    SessionFields,
    SessionState,
    SessionSummary,
)
from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, bad_request
from services.router.trajectories.history import History
from services.router.trajectories.session_store import Session, SessionStore
from services.router.trajectories.trajectory_tree import RecordedCall, RecordedChoice, Turn

_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class SessionRecords(Protocol):
    """The records of all sessions, in this process or in one that several routers share."""

    async def begin(self, name: str | None) -> int | None:
        """A call that names a session begins.

        Returns:
            The call's number in a recorded session, None if it is not recorded.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 `session_finished`, 400 for a name
                under which no session can be recorded.
        """

    async def end(self, name: str, number: int, call: RecordedCall | None) -> None:
        """A call that began is over; without a record it left nothing."""

    async def create(self, metadata: dict[str, str]) -> SessionSummary:
        """Make a session."""

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

    async def finish(self, name: str, reward: float | None) -> SessionSummary:
        """Close a session.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 if it is finished with another reward.
        """

    async def delete(self, name: str) -> None:
        """Forget a session that was read.

        Raises:
            RequestFailed: 404 `session_not_found`.
        """

    async def listed(
        self, state: SessionState, after: int, limit: int, wait_s: float
    ) -> list[SessionSummary]:
        """Sessions of one state; if none has finished after the cursor, wait for one."""


class Sessions:
    """The records in this process.

    A session is recorded if POST /v1/sessions made it or, with `record_sessions`, once a
    call names it. The id of one that was made is never taken for an ordinary name: if its
    record is gone, its calls are refused, not silently left out.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._store = SessionStore(config)
        self._news = asyncio.Event()
        self._counted: dict[str, int] = {}

    async def begin(self, name: str | None) -> int | None:
        """See `SessionRecords`."""
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
        """See `SessionRecords`."""
        kind = self._store.end(name, number, call, now=time.monotonic())
        RouterMetrics.session_calls.inc(tags={"kind": kind or "unrecorded"})
        self._show()

    async def create(self, metadata: dict[str, str]) -> SessionSummary:
        """See `SessionRecords`."""
        return self._create(metadata, None).summary()

    async def get(self, name: str, first: int = 0, count: int | None = None) -> SessionFields:
        """See `SessionRecords`."""
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
        """See `SessionRecords`."""
        session = self._found(name)
        self._store.finish(session, reward, now=time.monotonic(), wall=time.time())
        self._news.set()
        self._news = asyncio.Event()
        return session.summary()

    async def delete(self, name: str) -> None:
        """See `SessionRecords`."""
        self._store.delete(self._found(name))
        self._show()

    async def listed(
        self, state: SessionState, after: int, limit: int, wait_s: float
    ) -> list[SessionSummary]:
        """See `SessionRecords`."""
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


class SessionCall:
    """Records a call, if its session is recorded; an asynchronous context manager.

    A call counts when its last token is there, before the client can know it: so the next
    call, or `finish`, always finds it recorded.

    Raises:
        RequestFailed: on entering, if the session takes no calls.
    """

    def __init__(self, sessions: SessionRecords, session: str | None) -> None:
        self._sessions, self._session = sessions, session
        self._number: int | None = None

    async def __aenter__(self) -> Self:
        self._number = await self._sessions.begin(self._session)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(None)

    @property
    def recorded(self) -> bool:
        """Whether the session keeps this call."""
        return self._number is not None

    async def watched(self, request: OpenRequest) -> AsyncGenerator[Piece, None]:
        """The pieces of the request, and its record before the last of them."""
        async with aclosing(request.pieces()) as pieces:
            async for piece in pieces:
                if piece.finished and all(journal.settled for journal in request.journals):
                    await self._end(request)
                yield piece
        await self._end(request)

    async def _end(self, request: OpenRequest | None) -> None:
        if self._number is None or self._session is None:
            return
        number, self._number = self._number, None
        call = None if request is None else _recorded(request)
        await self._sessions.end(self._session, number, call)


def _recorded(request: OpenRequest) -> RecordedCall | None:
    choices = [
        RecordedChoice(
            token_ids=journal.token_ids,
            logprobs=journal.logprobs,
            spans=journal.spans,
            finish_reason=journal.finish_reason or "",
            text=journal.text,
        )
        for journal in request.journals
        if journal.token_ids
    ]
    if not choices:
        return None
    return RecordedCall(
        prompt_token_ids=request.prompt_token_ids,
        choices=choices,
        history=History.of(request.ask.body),
    )
