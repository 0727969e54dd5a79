"""One open request: from render to the last token, on as many replicas as it takes."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from dataclasses import asdict, replace
from typing import Any, Literal

from services.protocol.rollout_server import CUT, GenerationOrder, RecordedStart
from services.protocol.session import CutReason
from services.router.answering.answer_parser import AnswerParser
from services.router.answering.continuation import ENGINE_DEFAULT_MAX_TOKENS
from services.router.answering.failover import ChoiceFailover
from services.router.answering.generate_request import generate_request
from services.router.answering.journal import ChoiceJournal, Piece
from services.router.answering.streams import merged
from services.router.errors import Unjournaled, UpstreamBroken
from services.router.placement.reservation import Reservation
from services.router.request.client_request import ClientRequest
from services.router.request.trace_context import Segment, request_span
from services.router.upstream.replicas import Attempts, Replicas

Phase = Literal["queue", "first_token", "stream"]
"""`queue` for a place on a replica, until its `first_token`, and `stream` for the rest. A request
that is continued elsewhere comes back to `queue`."""


class OpenRequest:
    """Runs one client request and keeps its token journal.

    Args:
        ask: what the client wants.
        replicas: where it can be had.
        recorded: a session keeps its tokens with their logprobs.
        start: recorded tokens that its prompt is to begin with.

    Attributes:
        ask: what the client wants; once it is rendered, in the words of a chat where it comes to
            one.
        journals: one per choice; empty until the request is rendered.
        first_reservation: the replica that was chosen first, for the response headers.
        parser: parses the answer's messages; None when the text is the message.
        phases: where its time goes.
        prompt_details: what the replica reports of the prompt's tokens, such as how many it had in
            its cache; None if it tells nothing, or was lost before.
        cut: why the prompt does not begin with the recorded tokens; None: it does, or there are
            none.
    """

    def __init__(
        self,
        ask: ClientRequest,
        replicas: Replicas,
        *,
        recorded: bool = False,
        start: RecordedStart | None = None,
    ) -> None:
        self.ask, self._replicas, self._start = ask, replicas, start
        # Engines charge a tenth of a short answer for them.
        self._keep_logprobs = recorded or ask.logprobs or ask.return_trajectory
        self.journals: list[ChoiceJournal] = []
        self.first_reservation: Reservation | None = None
        self.parser: AnswerParser | None = None
        self.phases = Phases()
        self.prompt_details: dict[str, Any] | None = None
        self.cut: CutReason | None = None
        self._request: dict[str, Any] | None = None
        self._model = ask.model
        self._failovers: list[ChoiceFailover] = []

    @property
    def model(self) -> str:
        """Name of the model that answers."""
        return self._model or ""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The rendered prompt."""
        return self._request["token_ids"] if self._request else []

    @property
    def sampling_params(self) -> dict[str, Any]:
        """Those that are not vLLM's defaults."""
        return self._request["sampling_params"] if self._request else {}

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that the replica had in its cache, None if it tells nothing."""
        return (self.prompt_details or {}).get("cached_tokens")

    @property
    def waits(self) -> bool:
        """Whether some of it waits for a place on a replica, or for the first token there."""
        waiting = any(one.waits for one in self._failovers)
        return self.phases.now in ("queue", "first_token") or waiting

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer, piece by piece; every journal is settled at the end.

        Raises:
            RequestFailed: the request cannot be answered.
            Unjournaled: before the first piece, the replica must answer by itself.
        """
        async with aclosing(self._unparsed()) as pieces:
            async for piece in pieces:
                if self.parser is not None and self.ask.streams_tokens:
                    async with aclosing(self.parser.streamed(piece, pieces)) as parsed:
                        async for message_piece in parsed:
                            yield message_piece
                    return
                if self.parser is not None and piece.finished:
                    piece.journal.message = await self.parser.message(piece.journal)
                yield piece

    async def _unparsed(self) -> AsyncGenerator[Piece, None]:
        attempts = Attempts(self._replicas.config, self._replicas.reservations, self.ask.needs)
        while not self._begun():
            self.phases.begin("queue")
            with request_span("choose") as choice:
                reservation = await attempts.reserve(
                    self._model, session=self.ask.session, weight=self.ask.choices
                )
                choice.set(replica=reservation.replica_id, kind=reservation.kind)
            self.first_reservation = self.first_reservation or reservation
            self._model = reservation.model
            segment = Segment("generate", reservation.replica_id, renders=self._request is None)
            try:
                with reservation, segment:
                    async with aclosing(self._first_segment(reservation, segment)) as pieces:
                        async for piece in pieces:
                            yield piece
            except UpstreamBroken as broken:
                attempts.note(broken, reservation)
        rest = [journal for journal in self.journals if not journal.settled]
        if not rest:
            return
        assert self._request is not None
        failovers = self._failovers = [
            ChoiceFailover(
                self.ask,
                journal,
                request=self._request,
                model=self.model,
                replicas=self._replicas,
                attempts=copy(attempts),
            )
            for journal in rest
        ]
        async with aclosing(merged([failover.pieces() for failover in failovers])) as pieces:
            async for piece in pieces:
                yield piece

    def _begun(self) -> bool:
        """Whether there are tokens to go on from, choice by choice."""
        return any(journal.token_ids or journal.settled for journal in self.journals)

    async def _first_segment(
        self, reservation: Reservation, segment: Segment
    ) -> AsyncGenerator[Piece, None]:
        self.phases.begin("first_token")
        upstream = self._replicas.upstream
        if self._request is None and self.ask.endpoint == "generate":
            self._rendered(
                generate_request(
                    self.ask, reservation, logprobs=self._keep_logprobs, interval=self._interval
                )
            )
        if self._request is None:
            stream = upstream.render_and_generate(reservation, self._order())
        else:
            stream = upstream.generate(reservation, self._request)
            self._begin_segment(reservation)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                if (request := chunk.get("request")) is not None:
                    self.ask = replace(self.ask, body=chunk.get("chat", self.ask.body))
                    self.cut = chunk.get(CUT)
                    self._rendered(request)
                    segment.rendered(len(self.prompt_token_ids))
                    self._begin_segment(reservation)
                for item in chunk.get("choices") or ():
                    yield self._direct_piece(reservation, item)
                if usage := chunk.get("usage"):
                    self.prompt_details = usage.get("prompt_tokens_details")
        if not all(journal.settled for journal in self.journals):
            raise UpstreamBroken("eof", reservation.replica_id)

    def _begin_segment(self, reservation: Reservation) -> None:
        for journal in self.journals:
            journal.begin_segment(reservation.replica_id)

    @property
    def _interval(self) -> int | None:
        """Tokens in a chunk, None for the engine's own way."""
        return None if self.ask.streams_tokens else self._replicas.config.journal_tokens

    def _order(self) -> GenerationOrder:
        ask = self.ask
        assert ask.endpoint != "generate", "its prompt is rendered already"
        return GenerationOrder(
            endpoint=ask.endpoint,
            body=ask.body,
            request_id=ask.answer_id,
            shown_early=ask.streams_tokens,
            offers_tools=ask.offers_tools,
            logprobs=self._keep_logprobs,
            interval=self._interval,
            fixed=asdict(ask.fixed) if ask.fixed is not None else None,
            start=asdict(self._start) if self._start is not None else None,
        )

    def _rendered(self, request: dict[str, Any]) -> None:
        """The replica has reported what it generates from; no token came before."""
        ask, params = self.ask, request["sampling_params"]
        reasons = request.get("reasoning_parser_kwargs") is not None
        parses = ask.is_chat and (ask.offers_tools or reasons)
        if parses and ask.streams_tokens and params.get("stop"):
            # Parsers read tokens, and text that a stop string may still take away is inside.
            raise Unjournaled("stop")
        params.setdefault("max_tokens", ENGINE_DEFAULT_MAX_TOKENS)
        self._request = request
        keep = ask.logprobs and not ask.streams_tokens
        self.journals = [
            ChoiceJournal(
                index,
                keep_entries=keep,
                keep_logprobs=self._keep_logprobs,
                streamed=ask.streams_tokens,
                end_tokens=self._replicas.end_tokens(self.model),
            )
            for index in range(ask.choices)
        ]
        if parses:
            self.parser = AnswerParser(
                ask, request, model=self.model, replicas=self._replicas, known=self._known
            )
            for journal in self.journals:
                journal.parsed = True
                journal.reasoning_tokens = 0 if reasons else None

    @property
    def _known(self) -> int:
        """Tokens of the prompt that were recorded before, but for the last, which ends a turn."""
        if self._start is None or self.cut is not None:
            return 0
        return len(self._start.token_ids) - 1

    def _direct_piece(self, reservation: Reservation, item: dict[str, Any]) -> Piece:
        """Tokens of an uncut choice: the engine's own text is right."""
        index = item.get("index")
        if not isinstance(index, int) or not 0 <= index < len(self.journals):
            raise UpstreamBroken("malformed", f"choice index {index!r}")
        journal = self.journals[index]
        new = journal.take(item)
        reservation.answered()
        self.phases.begin("stream")
        text = item.get("text") or ""
        journal.add_text(text)
        journal.settled = journal.finish_reason is not None
        if journal.settled:
            reservation.shrink()
        return Piece.of(self.ask, journal, text, new)


class Phases:
    """Seconds by phase; every moment since the first phase began belongs to one of them.

    Attributes:
        seconds: up to the beginning of the current phase.
        now: the current phase; None before the first and after the end.
    """

    __slots__ = ("_since", "now", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}
        self.now: Phase | None = None
        self._since = 0.0

    def begin(self, phase: Phase) -> None:
        """What follows is this phase's, until the next begins."""
        if phase != self.now:
            self.end()
            self.now, self._since = phase, time.monotonic()

    def end(self) -> None:
        """The request is over; a second call does nothing."""
        if self.now is not None:
            spent = time.monotonic() - self._since
            self.seconds[self.now] = self.seconds.get(self.now, 0.0) + spent
            self.now = None
