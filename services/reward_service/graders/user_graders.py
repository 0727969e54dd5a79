"""Users' own graders: Python functions by name, registered by a decorator or in the YAML.

A grader is `function(completion, **arguments)` and returns a finite number. It runs in a
process forked for the one call, and is trusted; the completion is not.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable
from typing import Any

UserGrader = Callable[..., float]

_NAMED: dict[str, UserGrader] = {}


def grader(name: str) -> Callable[[UserGrader], UserGrader]:
    """Register a function; its module must be among the service's `grader_modules`.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: UserGrader) -> UserGrader:
        if _NAMED.setdefault(name, function) is not function:
            raise ValueError(f"two graders are named {name!r}")
        return function

    return register


def named_in(modules: list[str]) -> list[str]:
    """Import modules and name the graders that they register."""
    for module in modules:
        importlib.import_module(module)
    return sorted(_NAMED)


def call_named(arguments: dict[str, Any]) -> float:
    """Call a grader; runs in a helper process.

    Raises:
        KeyError: there is none of this name.
        ValueError: what it returned is not a finite number.
    """
    place = arguments["place"]
    function = _NAMED[arguments["name"]] if place is None else pkgutil.resolve_name(place)
    return finite(function(arguments["completion"], **arguments["arguments"]))


def finite(value: Any) -> float:
    """The value as a reward.

    Raises:
        ValueError: it is no number, or infinite, or NaN.
    """
    if isinstance(value, bool | int | float):
        number = float(value)
    elif hasattr(value, "item"):  # a scalar of numpy or torch
        return finite(value.item())
    else:
        raise ValueError(f"a grader must return a number, not {type(value).__name__}")
    if not math.isfinite(number):
        raise ValueError(f"a grader must return a finite number, not {number}")
    return number
