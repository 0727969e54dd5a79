"""The methods of a schedule whose calls decide what it answers next.

A recorded call is the JSON line `[method, arguments, answer]`; `replay.py` plays a file of them
to another schedule.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import msgspec

BEGIN = "begin"
FULL = "full"
"""The method of the line of an orchestrator's first breath, and of the last before a loss."""

DECISIONS: set[str] = set()
"""Names of these methods."""

Listener = Callable[[str, dict[str, Any], Any], None]
"""Gets the name of a method, its arguments by name, and its answer."""


F = TypeVar("F", bound=Callable[..., Any])


def decision(method: F) -> F:
    """Pass each call of this method of an object to the object's `listener`, if it has one."""
    names = tuple(signature(method).parameters)[1:]

    @wraps(method)
    def recorded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = method(self, *args, **kwargs)
        if self.listener is not None:
            given = dict(zip(names, args, strict=False)) | kwargs
            self.listener(method.__name__, given, answer)
        return answer

    DECISIONS.add(method.__name__)
    return cast(F, recorded)


def plain(answer: Any) -> Any:
    """An answer as it is read from JSON; sets are sorted."""
    return msgspec.json.decode(msgspec.json.encode(answer, order="deterministic"))
