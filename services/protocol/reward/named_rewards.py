"""Rewards by name: a grade of several numbers, such as `{"correct": 1.0, "format": 0.2}`."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

MAX_NAMES = 8
_NAME = r"^[a-z][a-z0-9_]{0,31}$"
RewardName = Annotated[str, Field(pattern=_NAME)]


def named_rewards(
    given: Mapping[Any, Any], number: Callable[[Any], float] = float
) -> dict[str, float]:
    """What a grader or an environment returned, checked.

    Args:
        given: rewards by name.
        number: reads one of them.

    Raises:
        ValueError: a name or a number is none, or there are too many.
        TypeError: from `number`.
    """
    if not 1 <= len(given) <= MAX_NAMES:
        raise ValueError(f"1 to {MAX_NAMES} named rewards can be given, not {len(given)}")
    for name in given:
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            raise ValueError(f"a reward cannot be named {name!r}: use a-z, 0-9 and _, at most 32")
    found = {name: number(value) for name, value in given.items()}
    for name, value in found.items():
        if not math.isfinite(value):
            raise ValueError(f"the reward {name} must be a finite number, not {value}")
    return found
