"""The record of each request, for metrics, and the access log.

The log has a JSON line for a request that has ended, or for some of them.
"""

import time
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.router.answering.open_request import OpenRequest
from services.router.answering.pass_through import PassThrough
from services.router.request.client_request import ClientRequest, Endpoint
from services.router.request.trace_context import TRACE, trace_headers, trace_id

LOGGED = "millrace.logged"
"""In the scope of a request whose endpoint writes a line of its own."""

_LOG = Log("router")
_MOST_PATH = 200


class AccessLog:
    """Writes lines of the event `request`.

    Prompts, answers and keys are never in them.

    Args:
        share: of the requests that end well; 0 writes nothing at all, and above that all that
            do not end well are written.
    """

    def __init__(self, share: float) -> None:
        self._share, self._due = share, 0.0

    def takes(self, *, well: bool) -> bool:
        """Whether the next line is wanted; evenly spread, so that it can be tested."""
        if not self._share or not well:
            return self._share > 0
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def write(self, **fields: Any) -> None:
        """Write one line; what is None is left out."""
        _LOG.info("request", **{name: value for name, value in fields.items() if value is not None})


class LoggedApp:
    """Middleware, first to see a request: logs sessions, lists, refused keys and wrong paths.

    Args:
        app: what is served.
        log: where lines are written.
        quiet_paths: paths whose successes are not worth a line, such as a probe's.
    """

    def __init__(self, app: ASGIApp, *, log: AccessLog, quiet_paths: Collection[str] = ()) -> None:
        self._app, self._log, self._quiet = app, log, quiet_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, code = time.monotonic(), 0

        async def noting(message: Message) -> None:
            nonlocal code
            code = message.get("status", code)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if not scope.get(LOGGED):
                self._write(scope, code, time.monotonic() - began)

    def _write(self, scope: Scope, code: int, seconds: float) -> None:
        well = 0 < code < 400
        if (well and scope["path"] in self._quiet) or not self._log.takes(well=well):
            return
        self._log.write(
            endpoint=f"{scope['method']} {scope['path'][:_MOST_PATH]}",
            status="ok" if well else f"http_{code}" if code else "disconnected",
            key=scope.get(KEY_NAME),
            trace=trace_id(trace_headers(Headers(scope=scope), begin=False)),
            ms={"total": round(1000 * seconds, 1)},
        )


class RequestRecord:
    """One request, from its first byte to its last.

    Args:
        endpoint: where it came in.
        log: where it may be written.
        key: name of the client's key, None without keys.

    Attributes:
        ask: what the client wants, once it has been read.
        served: what answers it.
    """

    def __init__(self, endpoint: Endpoint, log: AccessLog, key: str | None) -> None:
        self._tags: dict[str, str] = {"endpoint": endpoint}
        self._log, self.key = log, key
        self._began = time.monotonic()
        self.ask: ClientRequest | None = None
        self.served: OpenRequest | PassThrough | None = None

    def close(self, status: str) -> None:
        """The request is over.

        Args:
            status: named, `ok` if all went well.
        """
        phases: dict[str, float] = {}
        if isinstance(self.served, OpenRequest):
            self.served.phases.end()
            phases.update(self.served.phases.seconds.items())
        seconds = time.monotonic() - self._began
        RouterMetrics.requests.inc(tags={**self._tags, "status": status})
        RouterMetrics.duration.observe(seconds, self._tags)
        for phase, spent in phases.items():
            RouterMetrics.phase.observe(spent, {"phase": phase})
        if "stream" in phases:
            waited = sum(phases.values()) - phases["stream"]
            RouterMetrics.first_token.observe(waited, self._tags)
        if self._log.takes(well=status == "ok"):
            self._write(status, {**phases, "total": seconds})

    def _write(self, status: str, seconds: dict[str, float]) -> None:
        ask, served = self.ask, self.served
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
