"""What is known of one request when it is over: for metrics and the access log."""

import time
from typing import Protocol

from services.observability.metrics import RouterMetrics
from services.router.answering.open_request import OpenRequest
from services.router.http.access_log import AccessLog
from services.router.placement.reservation import Reservation
from services.router.request.client_request import ClientRequest, Endpoint
from services.router.request.trace_context import TRACE, trace_id


class Served(Protocol):
    """A request that the router answers, in one way or another."""

    first_reservation: Reservation | None


class RequestRecord:
    """One request, from its first byte to its last.

    Args:
        endpoint: where it came in.
        log: where it may be written.
        key: name of the client's key, None without keys.
    """

    def __init__(self, endpoint: Endpoint, log: AccessLog, key: str | None) -> None:
        self._tags: dict[str, str] = {"endpoint": endpoint}
        self._log, self.key = log, key
        self._began = time.monotonic()
        self._ask: ClientRequest | None = None
        self._served: Served | None = None

    def asks(self, ask: ClientRequest) -> None:
        """The request has been read."""
        self._ask = ask

    def served_by(self, served: Served) -> None:
        """The request is being answered."""
        self._served = served

    def close(self, status: str) -> None:
        """The request is over.

        Args:
            status: named, `ok` if all went well.
        """
        phases: dict[str, float] = {}
        if isinstance(self._served, OpenRequest):
            self._served.phases.end()
        seconds = time.monotonic() - self._began
        RouterMetrics.requests.inc(tags={**self._tags, "status": status})
        RouterMetrics.duration.observe(seconds, self._tags)
        if isinstance(self._served, OpenRequest):
            phases = {str(phase): spent for phase, spent in self._served.phases.seconds.items()}
            for phase, spent in phases.items():
                RouterMetrics.phase.observe(spent, {"phase": phase})
            if "stream" in phases:
                waited = sum(phases.values()) - phases["stream"]
                RouterMetrics.first_token.observe(waited, self._tags)
        if self._log.takes(well=status == "ok"):
            self._write(status, {**phases, "total": seconds})

    def _write(self, status: str, seconds: dict[str, float]) -> None:
        ask, served = self._ask, self._served
        reservation = served.first_reservation if served else None
        request = served if isinstance(served, OpenRequest) else None
        journals = request.journals if request else []
        self._log.write(
            endpoint=self._tags["endpoint"],
            status=status,
            key=self.key,
            trace=trace_id(TRACE.get()),
            answer=ask.answer_id if ask else None,
            model=reservation.model if reservation else ask.model if ask else None,
            session=ask.session if ask else None,
            stream=ask.stream if ask else None,
            replica=reservation.replica_id if reservation else None,
            choice=reservation.kind if reservation else None,
            prompt_tokens=len(request.prompt_token_ids) if request else None,
            tokens=sum(len(journal.token_ids) for journal in journals) if request else None,
            continued=sum(max(0, journal.segments - 1) for journal in journals) or None,
            ms={name: round(1000 * spent, 1) for name, spent in seconds.items()},
        )
