"""Ends the connection of a client that takes nothing, with all that is still to be sent on it."""

from starlette.types import Scope

ABORT = "millrace.abort"
"""In the scope of a request: ends its connection at once; absent where a proxy has the client."""
STUCK = "millrace.stuck"
"""In the scope of a request whose connection was ended because its client took nothing."""


def cut_off(scope: Scope) -> None:
    """End a request's connection, if it is the client's own.

    A connection that is only closed stays until its client has taken what was written, which a
    client that is stuck never does.
    """
    abort = scope.get(ABORT)
    if abort is not None:
        abort()
