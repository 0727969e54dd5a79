"""One text for one value: the jail sends it, the service compares it byte for byte.

Types are kept apart (`True`, `1` and `1.0` have three texts). JSON has one kind of sequence,
so a tuple and a list of the same items share a text; a task file could not say which it
expects. No value of another type has a text, not even a subclass of a type that has one.
"""

import json
import math
from typing import Any

MAX_DEPTH = 100


class NoCanonicalText(ValueError):
    """The value is of a type, or nested to a depth, that no expected value can have."""


def canonical(value: Any, depth: int = MAX_DEPTH) -> str:
    """ASCII text without line breaks that is equal exactly for equal values of equal type.

    Integers are in base 16, which takes linear time at any size; floats are in base 2 and
    exact, the two zeros alike.

    Raises:
        NoCanonicalText: the value is not plain data.
    """
    kind = type(value)
    if depth == 0:
        raise NoCanonicalText(f"nested deeper than {MAX_DEPTH}")
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        return f"i{value:x}"
    if kind is float:
        return f"f{value.hex()}" if value or math.isnan(value) else "f0"
    if kind is str:
        return json.dumps(value)
    if kind is list or kind is tuple:
        return "[" + ",".join(canonical(item, depth - 1) for item in value) + "]"
    if kind is dict:
        pairs = ((canonical(k, depth - 1), canonical(v, depth - 1)) for k, v in value.items())
        return "{" + ",".join(f"{key}:{text}" for key, text in sorted(pairs)) + "}"
    raise NoCanonicalText(f"of type {kind.__name__}")
