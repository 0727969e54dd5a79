"""The rest of one choice after its replica was lost, from the token journal."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from services.observability.metrics import RouterMetrics
from services.router.answering.continuation import (
    ContinuedText,
    continuation,
    finished_at_cut,
    history_dependence,
    whole_again,
)
from services.router.answering.journal import ChoiceJournal, Diverged, NewTokens, Piece
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.placement.reservation import Reservation
from services.router.request.client_request import ClientRequest
from services.router.request.trace_context import Segment, request_span
from services.router.upstream.replicas import Attempts, Replicas

_DERENDER = "/v1/completions/derender"


class ChoiceFailover:
    """Continues one choice until it is settled, over as many replicas as it takes.

    Args:
        ask: what the client wants.
        journal: the choice.
        request: the whole request as it was first sent.
        model: the model that began the answer.
        replicas: where to go on.
        attempts: what broke so far.

    Attributes:
        waits: it has no place on a replica, or none that has answered yet.
    """

    def __init__(
        self,
        ask: ClientRequest,
        journal: ChoiceJournal,
        *,
        request: dict[str, Any],
        model: str,
        replicas: Replicas,
        attempts: Attempts,
    ) -> None:
        self._ask, self._journal, self._request = ask, journal, request
        self._model, self._replicas, self._attempts = model, replicas, attempts
        self.waits = True
        self._furthest = 0
        self._text: ContinuedText | None = None
        self._pending = NewTokens([], [])
        self._replay = False
        self._replayed_text = ""

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The rest of the choice.

        Raises:
            RequestFailed: out of attempts, no lease in time, or it came out differently.
        """
        while not self._journal.settled:
            self._furthest = max(self._furthest, len(self._journal.token_ids))
            self.waits = True
            self._look_at_the_cut()
            with request_span("choose") as choice:
                reservation = await self._attempts.reserve(
                    self._model, session=self._ask.session, weight=1
                )
                choice.set(replica=reservation.replica_id, kind=reservation.kind)
            segment = Segment("failover", reservation.replica_id)
            try:
                with reservation, segment:
                    async with aclosing(self._segment(reservation)) as pieces:
                        async for piece in pieces:
                            yield piece
            except UpstreamBroken as broken:
                progressed = len(self._journal.token_ids) > self._furthest
                self._attempts.note(broken, reservation, progressed=progressed)
        self.waits = False

    def _look_at_the_cut(self) -> None:
        """Decide whether the choice is complete, goes on, or starts again."""
        journal = self._journal
        if not journal.token_ids:
            return
        if journal.finish_reason is None:
            end_tokens = frozenset(self._replicas.end_tokens(self._model))
            end = finished_at_cut(self._request, journal, end_tokens)
            if end is not None:
                journal.finish_reason, journal.stop_reason = end
            elif history_dependence(self._request) is not None:
                self._start_again()
                return
        if self._text is None:
            self._text = ContinuedText(journal, self._request)

    def _start_again(self) -> None:
        """From the prompt: tokens that the client has seen must come out the same."""
        RouterMetrics.restarts.inc()
        self._replay, self._replayed_text = self._journal.visible, ""
        self._pending = NewTokens([], [])
        if not self._replay:
            self._journal.clear()

    async def _segment(self, reservation: Reservation) -> AsyncGenerator[Piece, None]:
        journal, text = self._journal, self._text
        # What the client gets of a parsed choice comes from its tokens, not from its text.
        shows_text = self._ask.streams_tokens and not journal.parsed
        eager = text is not None and (shows_text or text.looks_for_stops)
        if text is not None and (eager or journal.finish_reason is not None):
            yield await self._decoded(text, reservation)
            if journal.settled:
                return
        journal.begin_segment(reservation.replica_id, replay=self._replay)
        body = (whole_again if self._replay else continuation)(self._request, journal)
        async with aclosing(self._replicas.upstream.generate(reservation, body)) as chunks:
            async for chunk in chunks:
                for item in chunk.get("choices") or ():
                    self._take(item)
                    self.waits = False
                    reservation.answered()
                    if text is None:
                        yield self._direct(item.get("text") or "")
                    elif eager or journal.finish_reason is not None:
                        yield await self._decoded(text, reservation)
                    elif journal.parsed:
                        yield self._piece("")
                    if journal.settled:
                        return
        raise UpstreamBroken("eof", reservation.replica_id)

    def _take(self, item: dict[str, Any]) -> None:
        try:
            new = self._journal.take(item)
        except Diverged as diverged:
            name = history_dependence(self._request)
            why = f"an answer with {name} came out differently: {diverged}"
            message = f"the replica was lost, and {why}"
            raise RequestFailed(503, "not_continuable", message, retry_after_s=1) from None
        RouterMetrics.replayed_tokens.inc(new.replayed)
        self._pending = NewTokens(
            self._pending.token_ids + new.token_ids, self._pending.entries + new.entries
        )

    def _direct(self, text: str) -> Piece:
        """From a segment that began at the prompt: the engine's own text is right."""
        if self._replay:
            self._replayed_text += text
            text = self._replayed_text[len(self._journal.text) :]
        self._journal.add_text(text)
        self._journal.settled = self._journal.finish_reason is not None
        return self._piece(text)

    async def _decoded(self, text: ContinuedText, reservation: Reservation) -> Piece:
        async def derender(body: dict[str, Any]) -> Any:
            return await self._replicas.upstream.call(reservation, _DERENDER, body)

        before = len(self._journal.token_ids)
        new = await text.advance(derender)
        if dropped := before - len(self._journal.token_ids):
            del self._pending.token_ids[-dropped:], self._pending.entries[-dropped:]
        return self._piece(new)

    def _piece(self, text: str) -> Piece:
        new, self._pending = self._pending, NewTokens([], [])
        return Piece.of(self._ask, self._journal, text, new)
