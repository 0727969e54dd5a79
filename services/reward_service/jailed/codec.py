"""Plain values as text, for both sides of the jail: one line of ASCII, types kept apart.

`True`, `1`, `1.0`, `(1,)` and `[1]` have five texts. Brackets inside strings are escaped, so a
bracket in a text is always one of structure. No value of another type has a text, not even a
subclass of a type that has one.
"""

import json
import math
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
_ESCAPES = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "()[]{}<>"})
_CLOSING = {"[": "]", "(": ")", "<": ">", "{": "}"}
_WORDS = {"None": None, "True": True, "False": False}
_MAX_COLLISIONS = 1000
_ATOMS = frozenset({bool, int, float, complex, str})
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}
"""How a built-in class has the value of an object of a subclass."""


class NotEncodable(ValueError):
    """The value is of a type, or nested to a depth, that no expected value can have."""


class NotDecodable(ValueError):
    """Not what `encode` writes."""


def encode_call(positional: list[Any], named: dict[str, Any]) -> str:
    """Arguments as one text: the list alone, or a tuple with those that are given by name.

    Raises:
        NotEncodable: one of them is not plain data.
    """
    return encode((positional, named) if named else positional)


def decode_call(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a text of `encode_call`.

    Raises:
        NotDecodable: it is something else.
    """
    given = decode(text)
    return given if isinstance(given, tuple) else (given, {})


def as_plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value with every object of a subclass of a built-in class as that class has it.

    What an assert compares with `==` may be a `Counter` or an `IntEnum` as well. An object that
    lies about itself gains nothing: what it holds is compared, elsewhere.
    """
    kind = type(value)
    if depth == 0 or value is None or kind in _ATOMS:
        return value
    for base, plain in _PLAIN.items():
        if isinstance(value, base):
            value = value if kind is base else plain(value)
            break
    if type(value) is dict:
        pairs = value.items()
        return {as_plain(key, depth - 1): as_plain(item, depth - 1) for key, item in pairs}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(as_plain(item, depth - 1) for item in value)
    return value


def encode(value: Any, depth: int = MAX_DEPTH) -> str:
    """ASCII text without line breaks that is equal exactly for equal values of equal type.

    Integers are in base 16, which takes linear time at any size; floats are in base 2 and
    exact, the two zeros alike. Sets and dictionaries are sorted by their items' texts.

    Raises:
        NotEncodable: the value is not plain data.
    """
    kind = type(value)
    if depth == 0:
        raise NotEncodable(f"nested deeper than {MAX_DEPTH}")
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        return f"i{value:x}"
    if kind is float:
        return f"f{value.hex()}" if value or math.isnan(value) else "f0x0.0p+0"
    if kind is complex:
        return f"c{encode(value.real)};{encode(value.imag)}"
    if kind is str:
        return json.dumps(value).translate(_ESCAPES)
    if kind is list or kind is tuple:
        items = ",".join(encode(item, depth - 1) for item in value)
        return f"[{items}]" if kind is list else f"({items})"
    if kind is set or kind is frozenset:
        return f"<{','.join(sorted(encode(item, depth - 1) for item in value))}>"
    if kind is dict:
        pairs = ((encode(k, depth - 1), encode(v, depth - 1)) for k, v in value.items())
        return "{" + ",".join(f"{key}:{text}" for key, text in sorted(pairs)) + "}"
    raise NotEncodable(f"of type {kind.__name__}")


def decode(text: str) -> Any:
    """The value of a text; sets come back frozen where they must be hashable.

    Raises:
        NotDecodable: it is something else.
    """
    try:
        value, end = _value(text, 0, MAX_DEPTH)
    except NotDecodable:
        raise
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise NotDecodable(str(error)) from None
    if end != len(text):
        raise NotDecodable(f"something follows the value at {end}")
    return value


def refuse_collisions(items: list[Any]) -> list[Any]:
    """The items of a set, unless so many share a hash that the set would take quadratic time.

    Equal hashes of unequal integers are easily made: CPython takes them modulo 2**61 - 1.

    Raises:
        NotDecodable: there are too many.
        TypeError: one cannot be hashed.
    """
    hashes = len({hash(item) for item in items})
    if len(items) - hashes <= _MAX_COLLISIONS:
        return items
    if len({encode(item) for item in items}) - hashes > _MAX_COLLISIONS:  # not just equal
        raise NotDecodable("too many items of a set share a hash")
    return items


def _value(text: str, at: int, depth: int, *, hashed: bool = False) -> tuple[Any, int]:
    if depth == 0:
        raise NotDecodable(f"nested deeper than {MAX_DEPTH}")
    first = text[at]
    if first == '"':
        return _string(text, at)
    if first in _CLOSING:
        return _collection(text, at, depth, hashed=hashed)
    end = at
    while end < len(text) and text[end] not in ",:])>}":
        end += 1
    word = text[at:end]
    if word in _WORDS:
        return _WORDS[word], end
    if first == "i":
        return int(word[1:], 16), end
    if first == "f":
        return float.fromhex(word[1:]), end
    if first == "c":
        real, imaginary = (float.fromhex(part[1:]) for part in word[1:].split(";"))
        return complex(real, imaginary), end
    raise NotDecodable(f"no value at {at}")


def _string(text: str, at: int) -> tuple[str, int]:
    end = at + 1
    while text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    return json.loads(text[at : end + 1]), end + 1


def _collection(text: str, at: int, depth: int, *, hashed: bool) -> tuple[Any, int]:
    opening, closing = text[at], _CLOSING[text[at]]
    keys = hashed or opening in "<{"
    items: list[Any] = []
    at += 1
    while text[at] != closing:
        if items:
            if text[at] != ",":
                raise NotDecodable(f"no comma at {at}")
            at += 1
        item, at = _value(text, at, depth - 1, hashed=keys)
        if opening == "{":
            if text[at] != ":":
                raise NotDecodable(f"no colon at {at}")
            value, at = _value(text, at + 1, depth - 1, hashed=hashed)
            item = (item, value)
        items.append(item)
    if opening == "[":
        return items, at + 1
    if opening == "(":
        return tuple(items), at + 1
    if opening == "{":
        refuse_collisions([key for key, _ in items])
        return dict(items), at + 1
    refuse_collisions(items)
    return (frozenset(items) if hashed else set(items)), at + 1
