"""The header with an API key, for calls to our own ports and to external backends."""

import os

from services.protocol.errors import InvalidInput


def key_header(key: str | None) -> dict[str, str]:
    """The header that shows the key; empty without one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def key_in(variable: str | None, *, field: str) -> str | None:
    """The key in an environment variable, None for None.

    Args:
        field: the configuration key that names the variable.

    Raises:
        InvalidInput: it is not set.
    """
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise InvalidInput(field, variable, "Set that variable where the service runs.")
    return key
