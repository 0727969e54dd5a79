"""Server-sent events, as every API writes them."""

import json
from typing import Any

from services.http.json_body import json_bytes


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    named = b"event: %b\n" % name.encode() if name is not None else b""
    return b"%bdata: %b\n\n" % (named, json_bytes(data))


def named(data: str) -> bytes:
    """A replica's event in a stream of events that have names: those of their types."""
    return b"event: %b\ndata: %b\n\n" % (
        str(json.loads(data).get("type", "message")).encode(),
        data.encode(),
    )
