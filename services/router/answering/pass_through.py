"""Requests that only the replica itself can answer: its own endpoint, without a journal.

What the client has been shown cannot be continued without a journal. So a replica's loss is
made good by beginning again elsewhere as long as nothing was shown, which for an answer in one
piece means always, and is an error that says so after that.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from services.http.event_stream import END
from services.observability.metrics import RouterMetrics
from services.protocol.router import RETURN_TRAJECTORY, STREAM_BY
from services.router.errors import RequestFailed, UpstreamBroken, bad_request
from services.router.placement.reservation import Reservation
from services.router.request.client_request import ClientRequest
from services.router.upstream.replicas import Attempts, Replicas
from services.router.upstream.upstream import checked_answer

_ABORTED = "abort"
_LAST = "message_stop", "response.completed", "response.incomplete", "response.failed"
"""Types of events that end a stream, where no marker does."""


class PassThrough:
    """Passes one request and its answer on.

    Args:
        ask: what the client wants.
        name: the field because of which there is no journal; None: because of the model.
        replicas: where to pass it.
        recorded: a session would keep the answer's tokens.

    Raises:
        RequestFailed: 400, the request wants what only a journal can give.

    Attributes:
        ask: what the client wants.
        first_reservation: the replica that was chosen first, for the response headers.
    """

    def __init__(
        self, ask: ClientRequest, name: str | None, replicas: Replicas, *, recorded: bool = False
    ) -> None:
        _check_needs_no_journal(ask, name, recorded=recorded)
        self.ask, self._name, self._replicas = ask, name or "this model", replicas
        self._attempts = Attempts(replicas.config, replicas.reservations, ask.needs)
        self.first_reservation: Reservation | None = None
        RouterMetrics.passed_through.inc(tags={"field": self._name})

    async def whole(self) -> dict[str, Any]:
        """The replica's answer to a request that does not stream.

        Raises:
            RequestFailed: the replica refused it, or too many were lost.
        """
        while True:
            reservation = await self._reservation()
            try:
                with reservation:
                    path, body = self.ask.path, self.ask.body
                    answer = await self._replicas.upstream.answer(reservation, path, body)
                    _check_complete(answer)
                    return answer
            except UpstreamBroken as broken:
                self._attempts.note(broken, reservation)

    async def events(self) -> AsyncGenerator[str, None]:
        """The data of the events that the replica streams, but the end marker.

        Raises:
            RequestFailed: the replica refused it, or was lost after the first event.
        """
        shown = ended = False
        while not ended:
            reservation = await self._reservation()
            try:
                with reservation:
                    async with aclosing(self._stream(reservation)) as events:
                        async for event in events:
                            shown = True
                            yield event
                ended = True
            except UpstreamBroken as broken:
                if shown:
                    why = f"an answer with {self._name} cannot be continued"
                    message = f"the replica was lost ({broken.reason}), and {why}"
                    raise RequestFailed(503, "not_continuable", message) from None
                self._attempts.note(broken, reservation)

    async def _reservation(self) -> Reservation:
        ask = self.ask
        weight = ask.choices * ask.prompts
        reservation = await self._attempts.reserve(ask.model, session=ask.session, weight=weight)
        self.first_reservation = self.first_reservation or reservation
        return reservation

    async def _stream(self, reservation: Reservation) -> AsyncGenerator[str, None]:
        events = self._replicas.upstream.events(reservation, self.ask.path, self.ask.body)
        async with aclosing(events):
            async for event in events:
                if event == END:
                    return
                try:
                    answer = checked_answer(json.loads(event))
                except ValueError:
                    raise UpstreamBroken("malformed", "an event is not JSON") from None
                _check_complete(answer)
                reservation.answered()
                yield event.decode()
                if answer.get("type") in _LAST:
                    return
        raise UpstreamBroken("eof", reservation.replica_id)


def _check_needs_no_journal(ask: ClientRequest, name: str | None, *, recorded: bool) -> None:
    wants = {
        RETURN_TRAJECTORY: ask.return_trajectory,
        STREAM_BY: ask.stream_by == "choice",
        "a recorded session": recorded,
    }
    for extension in (extension for extension, wanted in wants.items() if wanted):
        if name is None:
            message = f"{ask.model!r} is served by a backend without a journal: leave out"
            raise bad_request(f"{message} {extension}", extension)
        message = f"{extension} needs tokens that an answer with {name} does not tell"
        raise bad_request(f"{message}; leave one of the two out", name)


def _check_complete(answer: dict[str, Any]) -> None:
    """An aborted choice, as at a weight update that ends requests, is a loss, too."""
    try:
        reasons = [choice.get("finish_reason") for choice in answer.get("choices") or ()]
    except (AttributeError, TypeError) as error:
        raise UpstreamBroken("malformed", repr(error)) from None
    if _ABORTED in reasons:
        raise UpstreamBroken(_ABORTED)
