"""W3C trace context: the headers by which a trace goes on from client to replica.

Where tracing is off the router makes no spans of its own: it hands on what came, so that a
replica's spans hang below the client's, and names the trace in the access log.
"""

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar

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
