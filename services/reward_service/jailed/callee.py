"""Answers the calls that tests in another jail make: the answer's side of asserts.

The answer's code learns the arguments and nothing else. Whatever it sends is
data that the tests' side reads into plain values.
"""

from collections.abc import Callable
from typing import Any

from services.reward_service.jailed.codec import (
    NotEncodable,
    as_plain,
    decode_call,
    encode,
    encode_call,
)
from services.reward_service.jailed.line_pipe import HungUp, LinePipe

VALUE, NOT_ENCODABLE, RAISED = "=", "?", "!"
"""First letter of a reply: a result and the arguments if the call changed them, a result without
a text, an exception's class and message."""


def serve_calls(find: Callable[[], Any], pipe: LinePipe) -> None:
    """Make calls of the function that `find` gives, until the tests hang up.

    Raises:
        MemoryError: a call used it up.
    """
    while True:
        try:
            pipe.send(_reply(find, pipe.receive()))
        except HungUp:
            return


def _reply(find: Callable[[], Any], call: str) -> str:
    positional, named = decode_call(call)
    try:
        result = as_plain(find()(*positional, **named))
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever an answer raises is its result
        return RAISED + encode([type(error).__name__[:100], _message(error)])
    try:
        return VALUE + encode((result, _changed(call, positional, named)))
    except NotEncodable as odd:
        return f"{NOT_ENCODABLE}{encode(str(odd))}"


def _changed(call: str, positional: list[Any], named: dict[str, Any]) -> list[Any] | None:
    """The arguments as the call left them, None if as they were, or no longer plain data."""
    after: list[Any] = as_plain(positional)
    try:
        return None if encode_call(after, as_plain(named)) == call else after
    except NotEncodable:
        return None


def _message(error: BaseException) -> str:
    try:
        return as_plain(str(error))[:200]
    except BaseException:  # noqa: BLE001 - the answer's own class may fail to describe itself
        return ""
