"""The recorded sessions of one router: pure, bounded in number, tokens and time."""

import operator
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Literal

from services.protocol.reward.reward_sum import reward_sum
from services.protocol.rollout_server import RecordedStart
from services.protocol.router import SESSION_HEADER
from services.protocol.session import (
    SESSION_PREFIX,
    CallKind,
    CutReason,
    SessionEnding,
    SessionOffer,
    SessionState,
    SessionSummary,
)
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, bad_request
from services.router.request.fixed_settings import FixedSettings
from services.router.trajectories.history import History
from services.router.trajectories.trajectory_tree import RecordedCall, TrajectoryTree

_LONGEST_CALL_S = 24 * 3600.0
_SEEDS = 1 << 31
DropReason = Literal["idle", "sessions", "tokens"]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that is not answered yet: when it began, and the router that has it, if that is
    known."""

    began: float
    router: str


@dataclass(frozen=True)
class CallStart:
    """A call of a recorded session has begun.

    Attributes:
        number: the call's.
        fixed: what holds for it, whatever it says; None: nothing.
        start: the recorded tokens that its prompt begins with, or why it has none; None: it goes
            on from no recorded answer, or the prompt is the template's.
    """

    number: int
    fixed: FixedSettings | None
    start: RecordedStart | CutReason | None = None


@dataclass(kw_only=True, eq=False)
class Session:
    """One recorded session; see `SessionSummary` for what the fields mean."""

    id: str
    created: int
    metadata: dict[str, str]
    used: float
    offer: SessionOffer | None = None
    taken: bool = False
    begun: int = 0
    earned: dict[int, float] = field(default_factory=dict)
    earned_by_token: dict[int, list[float]] = field(default_factory=dict)
    ending: SessionEnding = field(default_factory=SessionEnding)
    cursor: int | None = None
    calls: Counter[CallKind] = field(default_factory=Counter)
    open: dict[int, OpenCall] = field(default_factory=dict)
    unrecorded_calls: int = 0
    tree: TrajectoryTree = field(default_factory=TrajectoryTree)

    @property
    def state(self) -> SessionState:
        """Whether it takes calls."""
        return "open" if self.cursor is None else "finished"

    @property
    def graded(self) -> bool:
        """Whether it has ended with a reward, or for a grader."""
        return self.cursor is not None and self.ending.is_graded

    def fixed(self) -> FixedSettings | None:
        """What holds for its newest call."""
        if self.offer is None:
            return None
        seed = (self.offer.seed + self.begun - 1) % _SEEDS
        return FixedSettings(
            model=self.offer.model,
            max_tokens=self.offer.max_tokens,
            sampling={**self.offer.sampling, "seed": seed},
        )

    def summary(self) -> SessionSummary:
        """The session without its tokens."""
        return SessionSummary(
            id=self.id,
            state=self.state,
            created=self.created,
            metadata=self.metadata,
            turn_rewards=dict(self.earned),
            token_rewards=dict(self.earned_by_token),
            **dict(self.ending),
            offer="none" if self.offer is None else "taken" if self.taken else "waiting",
            cursor=self.cursor,
            calls={str(kind): count for kind, count in self.calls.items()},
            cuts={str(reason): count for reason, count in self.tree.cuts.items()},
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
        cuts: calls recorded so far that go on from an answer without its tokens, by reason.
    """

    def __init__(
        self, config: RouterConfig, forgotten: Callable[[Session], None] = lambda session: None
    ) -> None:
        """`forgotten` is called with every session that is deleted or dropped."""
        self._config, self._forgotten = config, forgotten
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._finished: OrderedDict[int, Session] = OrderedDict()
        self._offers: OrderedDict[str, Session] = OrderedDict()  # that nobody has taken
        self._keys: dict[tuple[str, str], Session] = {}
        self._last_cursor = 0
        self._last_call = time.time_ns()  # so that no process gives a number of one before it
        self.tokens = 0
        self.dropped: Counter[DropReason] = Counter()
        self.cuts: Counter[CutReason] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self,
        metadata: dict[str, str],
        *,
        now: float,
        wall: float,
        session_id: str | None = None,
        offer: SessionOffer | None = None,
    ) -> Session:
        """A new session, open, under an id of its own unless one is given."""
        name = session_id or SESSION_PREFIX + uuid.uuid4().hex
        session = Session(id=name, created=int(wall), metadata=metadata, used=now, offer=offer)
        self._sessions[name] = session
        if offer is not None:
            self._offers[name] = session
            if offer.key:
                self._keys[offer.run, offer.key] = session
        self._drop_excess(now)
        return session

    def known(self, offer: SessionOffer) -> Session | None:
        """The session of an earlier offer with the same key, None if there is none."""
        return self._keys.get((offer.run, offer.key)) if offer.key else None

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

    def begin(
        self, session: Session, history: History | None = None, *, now: float, router: str = ""
    ) -> CallStart:
        """A call of the session begins; with a history, it is to go on from recorded tokens.

        Raises:
            RequestFailed: 409 `session_finished`, 429 `too_many_session_calls` or
                `too_many_session_tokens`.
        """
        if session.state == "finished":
            message = f"the session {session.id!r} is finished; make another with POST /v1/sessions"
            raise RequestFailed(409, "session_finished", message, param=SESSION_HEADER)
        if len(session.open) >= self._config.max_open_calls:
            message = (
                f"the session {session.id!r} has {len(session.open)} open calls, as many as the "
                "router's max_open_calls allows: wait for an answer, or raise it"
            )
            raise RequestFailed(
                429, "too_many_session_calls", message, param=SESSION_HEADER, retry_after_s=1
            )
        if session.tree.tokens >= self._config.max_session_tokens:
            message = (
                f"the session {session.id!r} has {session.tree.tokens} tokens, as many as the "
                "router's max_session_tokens allows: finish it, or raise the bound"
            )
            raise RequestFailed(429, "too_many_session_tokens", message, param=SESSION_HEADER)
        self._last_call += 1
        session.open[self._last_call] = OpenCall(now, router)
        self._use(session, now)
        session.begun += 1
        start = None if history is None else session.tree.start(history)
        return CallStart(self._last_call, session.fixed(), start)

    def end(
        self, session_id: str, number: int, call: RecordedCall | None, *, now: float
    ) -> CallKind | None:
        """A call that began is over; without a record it left nothing.

        Returns:
            How it joined the session, None if it did not or the session has ended meanwhile.
        """
        session = self.find(session_id)
        if session is None:
            return None
        if session.open.pop(number, None) is None:
            if session.offer is None:
                return None
            session.begun += 1  # it began with the process before, which kept the session
        self._use(session, now)
        if call is None or session.state == "finished":
            session.unrecorded_calls += 1
            return None
        return self.record(session, call, now=now)

    @property
    def routers(self) -> set[str]:
        """Those that have open calls."""
        sessions = self._sessions.values()
        return {call.router for session in sessions for call in session.open.values()}

    def lose(self, router: str) -> int:
        """The open calls of a router that has died are over; returns how many there were."""
        count = 0
        for session in self._sessions.values():
            lost = [number for number, call in session.open.items() if call.router == router]
            for number in lost:
                del session.open[number]
            session.unrecorded_calls += len(lost)
            count += len(lost)
        return count

    def offered(self, run: str | None, task_id: str | None = None) -> Session | None:
        """The oldest session that is offered, of one run and task or any; None: there is none."""
        for session in self._offers.values():
            assert session.offer is not None
            if run in (None, session.offer.run) and task_id in (None, session.offer.task_id):
                return session
        return None

    def take(self, session: Session, *, now: float) -> None:
        """Give a session away that is offered."""
        del self._offers[session.id]
        session.taken = True
        self._use(session, now)

    def record(self, session: Session, call: RecordedCall, *, now: float) -> CallKind:
        """Add a call that has ended to an open session; returns how it joined."""
        tree = session.tree
        tokens, cuts = tree.tokens, tree.cuts.copy()
        kind = tree.record(call)
        session.calls[kind] += 1
        self.tokens += tree.tokens - tokens
        self.cuts += tree.cuts - cuts
        self._use(session, now)
        self._drop_excess(now)
        return kind

    def add_reward(self, session: Session, reward: float | list[float], *, now: float) -> None:
        """Count a reward of an open session, or one of each token of its newest call.

        Raises:
            RequestFailed: 409 `session_finished`, 400 for another number of tokens.
        """
        if session.state == "finished":
            message = (
                f"the session {session.id!r} is finished: its reward is {session.ending.reward}"
            )
            raise RequestFailed(409, "session_finished", message, param="reward")
        call = session.tree.calls
        if isinstance(reward, list):
            tokens = session.tree.newest_tokens()
            if len(reward) != tokens:
                message = (
                    f"token_rewards: {len(reward)} for the {tokens} tokens of the session's newest "
                    "call: give one of each, as many as its logprobs have entries"
                )
                raise bad_request(message, "token_rewards")
            known = session.earned_by_token.get(call, [0.0] * tokens)
            session.earned_by_token[call] = list(map(operator.add, reward, known))
        else:
            session.earned[call] = reward + session.earned.get(call, 0.0)
        self._use(session, now)

    def finish(self, session: Session, ending: SessionEnding, *, now: float, wall: float) -> None:
        """Close a session; to finish it again, with the same or nothing to say, changes nothing.

        Raises:
            RequestFailed: 409 `session_finished` with another end, 400 for a grader that was not
                offered.
        """
        whole = ending
        earned = [*session.earned.values(), *chain(*session.earned_by_token.values())]
        if earned and (ending.failure, ending.text, ending.grader) == (None, None, None):
            total = reward_sum((*earned, ending.reward or 0.0))
            whole = SessionEnding.model_construct(reward=total)
        if session.state == "finished":
            if ending == SessionEnding() or whole == session.ending:
                return
            message = f"the session {session.id!r} is finished with reward {session.ending.reward}"
            raise RequestFailed(409, "session_finished", message, param="reward")
        graders = session.offer.graders if session.offer else []
        if ending.grader is not None and ending.grader not in graders:
            known = ", ".join(graders) or "none: its run names them in `graders`"
            raise bad_request(f"grader: {ending.grader!r} is not offered, but {known}", "grader")
        self._offers.pop(session.id, None)
        # Cursors are milliseconds, made unique: a restarted router goes on above them.
        self._last_cursor = max(self._last_cursor + 1, int(wall * 1000))
        session.cursor, session.ending = self._last_cursor, whole
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
        self._offers.pop(session.id, None)
        offer = session.offer
        if offer is not None and self._keys.get((offer.run, offer.key)) is session:
            del self._keys[offer.run, offer.key]
        if session.cursor is not None:
            del self._finished[session.cursor]
        self.tokens -= session.tree.tokens
        self._forgotten(session)

    def expire(self, now: float) -> None:
        """Drop what has not been used for `session_idle_s`; an open call is use, for a day."""
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if session.used > now - self._config.session_idle_s:
                return
            # Without Serve nobody says which router has died and left its calls open.
            if any(call.began > now - _LONGEST_CALL_S for call in session.open.values()):
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
