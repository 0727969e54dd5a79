"""Recorded sessions by id, with clocks and waits: in this process, or shared by several routers."""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.router import SESSION_HEADER
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
from services.router.errors import RequestFailed, bad_request
from services.router.trajectories.history import History
from services.router.trajectories.kept_sessions import (
    Change,
    KeptSessions,
    read_call,
    written,
)
from services.router.trajectories.lost_routers import LostRouters, RouterIds
from services.router.trajectories.news import News
from services.router.trajectories.refused_rewards import EndedSessions
from services.router.trajectories.session_store import CallStart, Session, SessionStore
from services.router.trajectories.stored_responses import StoredResponses
from services.router.trajectories.trajectory_tree import RecordedCall, Turn

_LOG = Log("router")
_ANSWER_S = 10.0
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_DAMAGED = (ArithmeticError, AttributeError, LookupError, RequestFailed, TypeError, ValueError)
"""What comes of a file whose changes are not those of one session in their order."""


class Sessions:
    """The records in this process.

    A session is recorded if POST /v1/sessions made it or, with `record_sessions`, once a
    call names it. The id of one that was made is never taken for an ordinary name: if its
    record is gone, its calls are refused, not silently left out.

    Args:
        config: the router's settings.
        routers: see `LostRouters`; None: this process ends with its only router.
    """

    def __init__(self, config: RouterConfig, routers: RouterIds | None = None) -> None:
        self._config = config
        folder = config.sessions_dir
        self._kept = KeptSessions(Path(folder)) if folder is not None else None
        self._ended = EndedSessions(config.max_recorded_sessions)
        self._store = SessionStore(config, self._forget)
        self._responses = StoredResponses(
            max_responses=config.max_stored_responses,
            max_bytes=config.max_stored_response_mb << 20,
            idle_s=config.session_idle_s,
        )
        self._lost = LostRouters(routers, self._held_by, self._lose) if routers else None
        self._news, self._offered = News(), News()
        self._counted: dict[str, int] = {}
        if self._kept is not None:
            for name, changes in self._kept.read():
                self._restore(self._kept, name, changes)

    async def begin(
        self, name: str | None, history: History | None = None, router: str = ""
    ) -> CallStart | None:
        """A call that names a session begins; None if the session is not recorded.

        Args:
            name: the session.
            history: its messages, if it is to go on from recorded tokens.
            router: that has the call.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 `session_finished`, 429
                `too_many_session_calls` or `too_many_session_tokens`, 400 for a name under which no
                session can be recorded.
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
        begun = self._store.begin(session, history, now=now, router=router)
        self._follow(router)
        return begun

    async def end(self, name: str, number: int, call: RecordedCall | None) -> None:
        """A call that began is over; without a record it left nothing."""
        cuts = self._store.cuts.copy()
        kind = self._store.end(name, number, call, now=time.monotonic())
        if kind is not None and call is not None:
            self._keep(name, "record", *written(call))
        RouterMetrics.session_calls.inc(tags={"kind": kind or "unrecorded"})
        for reason in self._store.cuts - cuts:
            RouterMetrics.session_cuts.inc(tags={"reason": reason})
        self._show()

    async def create(
        self, metadata: dict[str, str], offer: SessionOffer | None = None
    ) -> SessionSummary:
        """Make a session, for an agent outside if there is an offer; see `SessionOffer.key`."""
        if offer is None:
            return self._create(metadata, None).summary()
        session = self._store.known(offer)
        if session is None:
            session = self._create(metadata, None, offer)
            self._keep(session.id, "create", metadata, offer.model_dump(mode="json"))
            self._offered.tell()
        return session.summary()

    async def take(self, run: str | None, task_id: str | None = None) -> SessionTaken:
        """Give an agent that asks for work the oldest session that is offered, of one run and task
        or any."""
        session = self._store.offered(run, task_id)
        if session is None:
            return SessionTaken()
        self._store.take(session, now=time.monotonic())
        self._keep(session.id, "take")
        assert session.offer is not None
        offer = session.offer
        return SessionTaken(
            session=session.summary(), task=offer.task, model=offer.model, graders=offer.graders
        )

    async def until_offered(
        self, run: str | None, wait_s: float, task_id: str | None = None
    ) -> bool:
        """Whether there is an offer for `take` in time: a wait that ends early takes nothing."""
        return await self._offered.wait_for(
            lambda: self._store.offered(run, task_id) is not None, self._bounded(wait_s)
        )

    async def offered_model(self, name: str | None) -> str | None:
        """The model that answers a session's calls, whatever they name; None: the one they name."""
        session = None if name is None else self._store.find(name)
        return None if session is None or session.offer is None else session.offer.model

    async def add_reward(self, name: str, reward: float | list[float]) -> SessionSummary:
        """Count a reward before the end of an open session, or those of its newest tokens.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 if it is finished, 400 for rewards of
                another number of tokens than the newest call has.
        """
        with self._ended.counted(name, self._store.find(name), "late"):
            session = self._found(name)
            self._store.add_reward(session, reward, now=time.monotonic())
        self._keep(name, "add_reward", reward)
        return session.summary()

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

    async def finish(self, name: str, ending: SessionEnding) -> SessionSummary:
        """Close a session.

        Raises:
            RequestFailed: 404 `session_not_found`, 409 if it is finished with another end, 400
                for a grader that was not offered.
        """
        counted = self._ended.counted(name, self._store.find(name), "twice")
        with counted if ending.is_graded else nullcontext():
            session = self._found(name)
            self._store.finish(session, ending, now=time.monotonic(), wall=time.time())
        self._keep(name, "finish", ending.model_dump(mode="json"))
        self._news.tell()
        return session.summary()

    async def delete(self, name: str) -> None:
        """Forget a session that was read; a live one stays with its agent, see `SessionOffer`.

        Raises:
            RequestFailed: 404 `session_not_found`.
        """
        session = self._found(name)
        if session.offer and session.offer.live and session.taken and session.state == "open":
            return
        self._store.delete(session)
        self._show()

    async def listed(
        self, state: SessionState, after: int, limit: int, wait_s: float
    ) -> list[SessionSummary]:
        """Sessions of one state; if none has finished after the cursor, wait for one."""
        if state == "open":
            return [session.summary() for session in self._store.open_ones(limit)]
        found = await self._news.wait_for(
            lambda: self._store.finished(after, limit), self._bounded(wait_s)
        )
        return [session.summary() for session in found or ()]

    def _bounded(self, wait_s: float) -> float:
        return min(wait_s, self._config.session_poll_max_s)

    async def keep_response(
        self,
        response: dict[str, Any],
        new: list[dict[str, Any]],
        earlier: str | None,
        router: str = "",
    ) -> None:
        """Keep a response of the Responses API; see `StoredResponses.put`."""
        self._responses.put(response, new, earlier, now=time.monotonic(), router=router)
        self._follow(router)

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

    def close(self) -> None:
        """Nothing is kept on disk any more; another process may have the folder."""
        if self._kept is not None:
            self._kept.close()

    def _follow(self, router: str) -> None:
        """What the router has begun ends with it."""
        if self._lost and router:
            self._lost.look()

    def _held_by(self) -> set[str]:
        return (self._store.routers | self._responses.routers) - {""}

    def _lose(self, router: str) -> None:
        calls = self._store.lose(router)
        self._responses.lose(router, now=time.monotonic())
        RouterMetrics.session_calls.inc(calls, tags={"kind": "lost"})
        _LOG.warning("router_lost", router=router, calls=calls)

    def _create(
        self, metadata: dict[str, str], name: str | None, offer: SessionOffer | None = None
    ) -> Session:
        session = self._store.create(
            metadata, now=time.monotonic(), wall=time.time(), session_id=name, offer=offer
        )
        self._show()
        return session

    def _forget(self, session: Session) -> None:
        self._ended.add(session)
        if self._kept is not None:
            self._kept.forget(session.id)

    def _keep(self, name: str, *change: Any) -> None:
        """Write what happened to a session, if it was offered and still is here."""
        session = self._store.find(name)
        if self._kept is not None and session is not None and session.offer is not None:
            self._kept.write(name, *change)

    def _restore(self, kept: KeptSessions, name: str, changes: list[Change]) -> None:
        """Make a session again of what an earlier process did to it."""
        if not changes:
            return
        try:
            self._repeat(name, changes)
        except _DAMAGED as error:
            kept.set_aside(name, error)  # before it is deleted, and its file with it
            if (begun := self._store.find(name)) is not None:
                self._store.delete(begun)
        self._show()

    def _repeat(self, name: str, changes: list[Change]) -> None:
        now, wall = time.monotonic(), time.time()
        (first, metadata, given), *later = changes
        if first != "create":
            raise ValueError(f"it begins with {first!r}")
        offer = SessionOffer.model_validate(given)
        session = self._store.create(metadata, now=now, wall=wall, session_id=name, offer=offer)
        for what, *given in later:
            if self._store.find(name) is None:
                return  # there are too many
            if what == "take":
                self._store.take(session, now=now)
            elif what == "record":
                session.begun += 1
                self._store.record(session, read_call(*given), now=now)
            elif what == "add_reward":
                self._store.add_reward(session, *given, now=now)
            elif what == "finish":
                ending = SessionEnding.model_validate(*given)
                self._store.finish(session, ending, now=now, wall=wall)
        session.summary()  # which checks what nothing before did

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
