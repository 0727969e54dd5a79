"""Plain values as text, for both sides of the jail: one line of ASCII, types kept apart.

`True`, `1`, `1.0`, `(1,)` and `[1]` have five texts. Brackets inside strings are escaped, so a
bracket in a text is always one of structure. No value of another type has a text, not even a
subclass of a type that has one.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from json import decoder
from typing import Any

MAX_DEPTH = 100
_ESCAPES = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "()[]{}<>"})
_CLOSING = {"[": "]", "(": ")", "<": ">", "{": "}"}
_WORDS = {"None": None, "True": True, "False": False}
_WORD = re.compile(r"[^,:\])>}]*")
_MAX_EXTRA_COMPARISONS = 1 << 18
"""Of unequal items that share a hash, in all sets and dictionaries of one value. Honest values make
some: -1 and -2 share one, and so do all points of a grid that differ in these alone."""
_CHARACTERS_A_COMPARISON = 16
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
    """The value of a text, in time linear in it; sets come back frozen where they must be hashable.

    Raises:
        NotDecodable: it is something else.
    """
    reader = _Reader(text)
    try:
        value = reader.value(MAX_DEPTH)
    except NotDecodable:
        raise
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise NotDecodable(str(error)) from None
    if reader.at != len(text):
        raise NotDecodable(f"something follows the value at {reader.at}")
    return value


def refuse_collisions(items: list[Any]) -> list[Any]:
    """The items of a set, unless so many share a hash that the set would take quadratic time.

    Equal hashes of unequal integers are easily made: CPython takes them modulo 2**61 - 1.

    Raises:
        NotDecodable: there are too many.
        TypeError: one cannot be hashed.
    """

    @cache
    def text_of(number: int) -> str:
        return encode(items[number])

    def weight_of(number: int) -> int:
        return 1 + len(text_of(number)) // _CHARACTERS_A_COMPARISON

    if extra_comparisons(items, text_of, weight_of) > _MAX_EXTRA_COMPARISONS:
        raise NotDecodable("too many items of a set share a hash")
    return items


def extra_comparisons(
    items: list[Any], text_of: Callable[[int], str], weight_of: Callable[[int], int]
) -> int:
    """Comparisons that a set of these makes only because unequal items share a hash, at most.

    Args:
        items: of the set.
        text_of: the text of an item, by its number: equal texts are equal items.
        weight_of: comparisons that comparing it with an equal one takes.
    """
    hashes = list(map(hash, items))
    shared = {found for found, count in Counter(hashes).items() if count > 1}
    if not shared:
        return 0
    numbers = [number for number, found in enumerate(hashes) if found in shared]
    unequal: defaultdict[int, set[str]] = defaultdict(set)
    for number in numbers:
        unequal[hashes[number]].add(text_of(number))
    return sum((len(unequal[hashes[number]]) - 1) * weight_of(number) for number in numbers)


class _Reader:
    """Reads the values of a text from left to right.

    Attributes:
        at: where the next value begins.
    """

    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text
        self._weight = 0  # comparisons that comparing the last value with an equal one takes
        self._left = _MAX_EXTRA_COMPARISONS

    def value(self, depth: int, *, hashed: bool = False) -> Any:
        """The next value, in a form that can be hashed if asked."""
        if depth == 0:
            raise NotDecodable(f"nested deeper than {MAX_DEPTH}")
        start, first = self.at, self._text[self.at]
        if first in _CLOSING:
            return self._collection(first, depth, hashed=hashed)
        value = self._string() if first == '"' else self._word(first)
        self._weight = 1 + (self.at - start) // _CHARACTERS_A_COMPARISON
        return value

    def _string(self) -> str:
        scanned: tuple[str, int] = decoder.scanstring(  # type: ignore[attr-defined]
            self._text, self.at + 1
        )
        value, self.at = scanned
        return value

    def _word(self, first: str) -> Any:
        start = self.at
        found = _WORD.match(self._text, start)
        assert found is not None, "it matches the empty text, too"
        word, self.at = found[0], found.end()
        if word in _WORDS:
            return _WORDS[word]
        if first == "i":
            return int(word[1:], 16)
        if first == "f":
            return float.fromhex(word[1:])
        if first == "c":
            real, imaginary = (float.fromhex(part[1:]) for part in word[1:].split(";"))
            return complex(real, imaginary)
        raise NotDecodable(f"no value at {start}")

    def _collection(self, opening: str, depth: int, *, hashed: bool) -> Any:
        closing, keys = _CLOSING[opening], hashed or opening in "<{"
        items, values = list[Any](), list[Any]()
        places, weights = [self.at + 1], list[int]()
        self.at += 1
        while self._text[self.at] != closing:
            if items:
                self._take(",")
                places.append(self.at)
            items.append(self.value(depth - 1, hashed=keys))
            weights.append(self._weight)
            if opening == "{":
                self._take(":")
                values.append(self.value(depth - 1, hashed=hashed))
        places.append(self.at + 1)
        self.at += 1
        self._weight = 1 + sum(weights)
        if opening in "<{":
            self._charge(items, places, weights)
        if opening == "{":
            return dict(zip(items, values, strict=True))
        if opening == "<":
            return frozenset(items) if hashed else set(items)
        return items if opening == "[" else tuple(items)

    def _charge(self, items: list[Any], places: list[int], weights: list[int]) -> None:
        """Take what a set of these items costs from what is left of all."""
        extra = extra_comparisons(
            items,
            lambda number: self._text[places[number] : places[number + 1] - 1],
            weights.__getitem__,
        )
        self._left -= extra
        self._weight += extra
        if self._left < 0:
            raise NotDecodable("too many items of a set share a hash")

    def _take(self, sign: str) -> None:
        if self._text[self.at] != sign:
            raise NotDecodable(f"no {sign} at {self.at}")
        self.at += 1
