"""JSON, fast, of whatever a client may have sent."""

import json
from typing import Any

import msgspec


def json_bytes(value: Any) -> bytes:
    """`value` as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a character of the client's, which only JSON can spell
        return json.dumps(value).encode()
