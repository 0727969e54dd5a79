"""The recorded sessions of one router: pure, bounded in number, tokens and time."""

import uuid
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from services.protocol.router import SESSION_HEADER
from services.protocol.session import (
    SESSION_PREFIX,
    CallKind,
    SessionState,
    SessionSummary,
)
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.trajectories.trajectory_tree import RecordedCall, TrajectoryTree

_LONGEST_CALL_S = 24 * 3600.0
DropReason = Literal["idle", "sessions", "tokens"]


@dataclass(kw_only=True, eq=False)
class Session:
    """One recorded session; see `SessionSummary` for what the fields mean."""

    id: str
    created: int
    metadata: dict[str, str]
    used: float
    reward: float | None = None
    cursor: int | None = None
    calls: Counter[CallKind] = field(default_factory=Counter)
    open: dict[int, float] = field(default_factory=dict)
    unrecorded_calls: int = 0
    tree: TrajectoryTree = field(default_factory=TrajectoryTree)

    @property
    def state(self) -> SessionState:
        """Whether it takes calls."""
        return "open" if self.cursor is None else "finished"

    def summary(self) -> SessionSummary:
        """The session without its tokens."""
        return SessionSummary(
            id=self.id,
            state=self.state,
            created=self.created,
            metadata=self.metadata,
            reward=self.reward,
            cursor=self.cursor,
            calls={str(kind): count for kind, count in self.calls.items()},
            open_calls=len(self.open),
            unrecorded_calls=self.unrecorded_calls,
            tokens=self.tree.tokens,
            trajectory_count=self.tree.leaves,
            trajectory_tokens=self.tree.written_out,
        )


class SessionStore:
    """Sessions by id, least recently used first.

    `now` is always a reading of one monotonic clock and `wall` of the calendar's, seconds.

    Attributes:
        tokens: token ids kept, over all sessions.
        dropped: sessions dropped so far, by reason.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._finished: OrderedDict[int, Session] = OrderedDict()
        self._last_cursor, self._last_call = 0, 0
        self.tokens = 0
        self.dropped: Counter[DropReason] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self, metadata: dict[str, str], *, now: float, wall: float, session_id: str | None = None
    ) -> Session:
        """A new session, open, under an id of its own unless one is given."""
        name = session_id or SESSION_PREFIX + uuid.uuid4().hex
        session = Session(id=name, created=int(wall), metadata=metadata, used=now)
        self._sessions[name] = session
        self._drop_excess(now)
        return session

    def find(self, session_id: str) -> Session | None:
        """The session of that id, None if it is not recorded or was dropped."""
        return self._sessions.get(session_id)

    def get(self, session_id: str) -> Session:
        """The session of that id.

        Raises:
            RequestFailed: 404 `session_not_found`.
        """
        session = self.find(session_id)
        if session is None:
            message = (
                f"the session {session_id!r} does not exist: it was never made, was read and "
                "deleted, or was idle too long; make one with POST /v1/sessions"
            )
            raise RequestFailed(404, "session_not_found", message, param=SESSION_HEADER)
        return session

    def begin(self, session: Session, *, now: float) -> int:
        """A call of the session begins.

        Returns:
            The call's number.

        Raises:
            RequestFailed: 409 `session_finished`.
        """
        if session.state == "finished":
            message = f"the session {session.id!r} is finished; make another with POST /v1/sessions"
            raise RequestFailed(409, "session_finished", message, param=SESSION_HEADER)
        self._last_call += 1
        session.open[self._last_call] = now
        self._use(session, now)
        return self._last_call

    def end(
        self, session_id: str, number: int, call: RecordedCall | None, *, now: float
    ) -> CallKind | None:
        """A call that began is over; without a record it left nothing.

        Returns:
            How it joined the session, None if it did not or the session has ended meanwhile.
        """
        session = self.find(session_id)
        if session is None or number not in session.open:
            return None
        del session.open[number]
        self._use(session, now)
        if call is None or session.state == "finished":
            session.unrecorded_calls += 1
            return None
        before = session.tree.tokens
        kind = session.tree.record(call)
        session.calls[kind] += 1
        self.tokens += session.tree.tokens - before
        self._drop_excess(now)
        return kind

    def finish(self, session: Session, reward: float | None, *, now: float, wall: float) -> None:
        """Close a session; to finish it again, without another reward, changes nothing.

        Raises:
            RequestFailed: 409 `session_finished` with another reward.
        """
        if session.state == "finished":
            if reward in (None, session.reward):
                return
            message = f"the session {session.id!r} is finished with reward {session.reward}"
            raise RequestFailed(409, "session_finished", message, param="reward")
        # Cursors are milliseconds, made unique: a restarted router goes on above them.
        self._last_cursor = max(self._last_cursor + 1, int(wall * 1000))
        session.cursor, session.reward = self._last_cursor, reward
        self._finished[session.cursor] = session
        self._use(session, now)

    def finished(self, after: int, limit: int) -> list[Session]:
        """Finished sessions in the order of finishing, those after a cursor."""
        later = (session for cursor, session in self._finished.items() if cursor > after)
        return list(islice(later, limit))

    def open_ones(self, limit: int) -> list[Session]:
        """Open sessions, least recently used first."""
        still = (session for session in self._sessions.values() if session.state == "open")
        return list(islice(still, limit))

    def delete(self, session: Session) -> None:
        """Forget a session that was read."""
        del self._sessions[session.id]
        if session.cursor is not None:
            del self._finished[session.cursor]
        self.tokens -= session.tree.tokens

    def expire(self, now: float) -> None:
        """Drop what has not been used for `session_idle_s`; an open call is use, for a day."""
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if session.used > now - self._config.session_idle_s:
                return
            # A router that died has left its calls open.
            if any(began > now - _LONGEST_CALL_S for began in session.open.values()):
                self._use(session, now)
            else:
                self._drop(session, "idle")

    def _drop_excess(self, now: float) -> None:
        self.expire(now)
        while len(self._sessions) > self._config.max_recorded_sessions:
            self._drop(next(iter(self._sessions.values())), "sessions")
        while self.tokens > self._config.max_recorded_tokens:
            self._drop(next(iter(self._sessions.values())), "tokens")

    def _drop(self, session: Session, reason: DropReason) -> None:
        self.delete(session)
        self.dropped[reason] += 1

    def _use(self, session: Session, now: float) -> None:
        session.used = now
        if session.id in self._sessions:
            self._sessions.move_to_end(session.id)
