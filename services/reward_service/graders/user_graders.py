"""Users' own graders: Python functions by name, registered by a decorator or in the YAML.

A grader is `function(completion, **arguments)` and returns a finite number, or several by name.
It runs in a process forked for the one call, and is trusted; the completion is not.
"""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from services.protocol.reward.named_rewards import named_rewards

UserGrader = Callable[..., float | Mapping[str, float]]

_NAMED: dict[str, UserGrader] = {}


class NoVerdict(Exception):
    """Raise it in a grader that cannot tell a reward for a reason that is not the answer's.

    Such an answer has no reward (`infra_error`). Any other exception is the answer's doing.
    """


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


def call_named(arguments: dict[str, Any]) -> float | dict[str, float]:
    """Call a grader; runs in a helper process.

    Raises:
        NoVerdict: there is none of this name, or it does not take these arguments.
        ValueError: what it returned is neither a finite number nor several by name.
    """
    place, name, given = arguments["place"], arguments["name"], arguments["arguments"]
    try:
        function = _NAMED[name] if place is None else pkgutil.resolve_name(place)
        _check_arguments(function, given)
    except (LookupError, ImportError, AttributeError, TypeError) as error:
        raise NoVerdict(f"{type(error).__name__}: {error}") from error
    return number_or_names(function(arguments["completion"], **given))


def _check_arguments(function: UserGrader, given: dict[str, Any]) -> None:
    """Refuse arguments that no call of the function could take, whatever the answer is.

    Raises:
        TypeError: naming the argument.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # of something built in, which does not say
        return
    signature.bind("", **given)


def number_or_names(value: Any) -> float | dict[str, float]:
    """The value as a reward, or as rewards by name.

    Raises:
        ValueError: it is neither.
    """
    return named_rewards(value, finite) if isinstance(value, Mapping) else finite(value)


def finite(value: Any) -> float:
    """The value as a reward.

    Raises:
        ValueError: it is no number, or infinite, or NaN.
    """
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(
                "a grader must return a number that is no larger than a float"
            ) from None
    elif hasattr(value, "item"):  # a scalar of numpy or torch
        return finite(value.item())
    else:
        raise ValueError(f"a grader must return a number, not {type(value).__name__}")
    if not math.isfinite(number):
        raise ValueError(f"a grader must return a finite number, not {number}")
    return number
