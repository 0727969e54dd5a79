"""W3C trace context: the headers by which a trace goes on from client to replica.

Where tracing is off the router makes no spans of its own: it hands on what came, so that a
replica's spans hang below the client's, and names the trace in the access log.
"""

import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from services.observability import tracing
from services.observability.tracing import Span
from services.router.errors import UpstreamBroken

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH = 55
_SAMPLED = "01"
_LONGEST_STATE = 512

TRACE: ContextVar[Mapping[str, str]] = ContextVar("trace", default={})  # noqa: B039  never changed
"""Trace headers of the request that the current task works for."""


def trace_headers(headers: Mapping[str, str], *, begin: bool) -> dict[str, str]:
    """What to send on; a `traceparent` that is not valid counts as absent, with its state.

    Args:
        headers: of the client's request, names in lower case.
        begin: begin a trace, sampled, for a request that brings none.
    """
    parent = headers.get("traceparent", "")
    if not _is_valid(parent):
        if not begin:
            return {}
        return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{_SAMPLED}"}
    state = headers.get("tracestate", "")
    if not state or len(state) > _LONGEST_STATE:
        return {"traceparent": parent}
    return {"traceparent": parent, "tracestate": state}


def trace_id(headers: Mapping[str, str]) -> str | None:
    """The trace that `trace_headers` go on with."""
    parent = headers.get("traceparent")
    return None if parent is None else parent[3:35]


def _is_valid(parent: str) -> bool:
    """Versions after 00 may have more fields; they are handed on as they are."""
    if not _PARENT.match(parent):
        return False
    return len(parent) == _LENGTH or (not parent.startswith("00") and parent[_LENGTH] == "-")


def request_span(name: str) -> AbstractContextManager[Span]:
    """A part of the request that the current task works for."""
    return tracing.span(name, TRACE.get())


class Segment:
    """What one replica does for a request: it is sent this span as its own's parent.

    A context manager. It stands inside of generators, which may be closed from another task
    than the one that they ran in, so nothing of a task's but `TRACE` is changed.

    Args:
        name: `generate`, or `failover` for the rest of an answer.
        replica_id: the replica.
        renders: it is sent messages, not tokens.
    """

    def __init__(self, name: str, replica_id: str, *, renders: bool = False) -> None:
        self._name, self._replica_id, self._renders = name, replica_id, renders
        self._span, self._render = tracing.OFF, tracing.OFF
        self._came: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        if tracing.is_on():
            self._came = TRACE.get()
            self._span = tracing.begin(self._name, self._came, replica=self._replica_id)
            if self._renders:
                self._render = tracing.begin("render", self._span.headers)
            TRACE.set(self._span.headers)
        return self

    def rendered(self, tokens: int) -> None:
        """The replica has reported the tokens of the prompt."""
        self._render.set(tokens=tokens)
        self._render.end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, UpstreamBroken):
            self._span.fail(error.reason)
        elif kind is not None and kind is not GeneratorExit:
            self._span.fail(kind.__name__)
        self._render.end()
        self._span.end()
        if tracing.is_on():
            TRACE.set(self._came)
