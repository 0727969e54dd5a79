"""Plain numbers in answers: read exactly, without any computer algebra. Pure functions."""

import math
import re
from fractions import Fraction

_SIGNED = r"[-+]?"
_GROUPED = re.compile(rf"{_SIGNED}\d{{1,3}}([, ])\d{{3}}(\1\d{{3}})*(\.\d+)?")
_DECIMAL = re.compile(rf"{_SIGNED}(\d+(\.\d*)?|\.\d+)(e{_SIGNED}\d{{1,3}})?", re.IGNORECASE)
_SLASH = re.compile(rf"({_SIGNED}\d+)\s*/\s*(\d+)")
_MIXED = re.compile(rf"({_SIGNED})(\d+) (\d+)/(\d+)")
_FRAC = re.compile(r"([-+]?)\\[dt]?frac(?:\{([-+]?\d+)\}| ?(\d))(?:\{(\d+)\}| ?(\d))")
_SCIENTIFIC = re.compile(
    r"([-+]?)(?:(\d+(?:\.\d*)?|\.\d+)(?:\\times|\\cdot|×))?10\^(?:\{([-+]?\d{1,3})\}|(\d))"
)
_SIDE_BY_SIDE = re.compile(rf"{_SIGNED}[\d.,/]+( {_SIGNED}[\d.,/]+)+%?")
_SPACES = (r"\left", r"\right", r"\,", r"\;", r"\:", r"\ ", "$", "~")
_NO_SPACE = r"\!"
_OPENINGS, _CLOSINGS = ("(", "[", "{"), (")", "]", "}")
_IDLE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_LIST_SPACE = re.compile(r"\d,\s+\d")
_MAX_CHARACTERS = 200
_BOXED, _MAX_BOXED = r"\boxed", 4096


def plain(text: str) -> str:
    """An answer without the dressing that changes nothing: dollars, spaces, a final stop.

    A space between two digits stays: `4 2` is not 42.
    """
    return _IDLE_SPACE.sub("", _spaced(text)).rstrip(".")


def _spaced(text: str) -> str:
    """The text with one plain space for each run of what LaTeX and Unicode have for spaces."""
    text = text.replace(_NO_SPACE, "")
    for part in _SPACES:
        text = text.replace(part, " ")
    return " ".join(text.split())


def number(text: str) -> Fraction | None:
    """The exact value of a number literal, None for anything else.

    Known are integers, decimals, groups of three digits after commas or spaces, `a/b`, mixed
    numbers, LaTeX fractions, scientific notation and per cent.
    """
    is_list = _LIST_SPACE.search(_spaced(text)) is not None
    text = plain(text)
    if is_list or len(text) > _MAX_CHARACTERS:
        return None
    if text.endswith("%"):
        value = number(text.rstrip("%").rstrip("\\"))
        return None if value is None else value / 100
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "").replace(" ", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if mixed := _MIXED.fullmatch(text):
        whole, part, of = (int(mixed[group]) for group in (2, 3, 4))
        return (-1 if mixed[1] == "-" else 1) * (whole + Fraction(part, of)) if of else None
    if scientific := _SCIENTIFIC.fullmatch(text):
        sign, mantissa, exponent, digit = scientific.groups()
        return Fraction(f"{sign}{mantissa or 1}") * Fraction(10) ** int(exponent or digit)
    parts = _ratio(text)
    if parts is None or parts[1] == 0:
        return None
    return Fraction(*parts)


def is_reduced(text: str) -> bool:
    """Whether a number literal is in lowest terms; true for all that is no fraction."""
    parts = _ratio(plain(text))
    return parts is None or (parts[1] != 1 and math.gcd(*parts) == 1)


def is_not_expanded(answer: str, expected: str) -> bool:
    r"""Whether an answer is an integer in scientific notation, such as `4.2\cdot 10^1`, and the
    expected number is not in that notation."""
    value = number(answer)
    if value is None or value.denominator != 1 or _SCIENTIFIC.fullmatch(plain(answer)) is None:
        return False
    return _SCIENTIFIC.fullmatch(plain(expected)) is None and in_latex(expected) == expected


def in_latex(text: str) -> str:
    r"""A decimal such as `2e-5` as `2\times 10^{-5}`, where no `e` is Euler's number."""
    decimal = _DECIMAL.fullmatch(plain(text)) if len(text) <= _MAX_CHARACTERS else None
    if decimal is None or decimal[3] is None:
        return text
    return rf"{decimal[0].removesuffix(decimal[3])}\times 10^{{{int(decimal[3][1:])}}}"


def are_side_by_side(text: str) -> bool:
    """Whether a text is several numbers with nothing but space between them: no value at all."""
    text = plain(text)
    return len(text) <= _MAX_CHARACTERS and _SIDE_BY_SIDE.fullmatch(text) is not None


def brackets(text: str) -> str:
    """The first and the last sign of a list, `()` of `(1, 2)`; empty if it has none around it."""
    text = plain(text).replace(r"\{", "{").replace(r"\}", "}")
    around = text[:1] + text[-1:]
    return around if "," in text and around[:1] in _OPENINGS and around[-1] in _CLOSINGS else ""


def _ratio(text: str) -> tuple[int, int] | None:
    if len(text) > _MAX_CHARACTERS:
        return None
    if match := _SLASH.fullmatch(text):
        return int(match[1]), int(match[2])
    if match := _FRAC.fullmatch(text):
        sign = -1 if match[1] == "-" else 1
        return sign * int(match[2] or match[3]), int(match[4] or match[5])
    return None


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds that is not empty, None if there is none.

    Contents of more than a few thousand characters do not count. It looks at every brace once, from
    the last to the first, so that braces without an end take no more time than others.
    """
    opening, closing = text.rfind("{"), text.rfind("}")
    closings: list[int] = []  # right of the opening brace, and of no other that was seen
    while opening >= 0:
        while closing > opening:
            closings.append(closing)
            closing = text.rfind("}", 0, closing)
        end = closings.pop() if closings else None
        if end is not None and end - opening <= _MAX_BOXED and text.endswith(_BOXED, 0, opening):
            content = text[opening + 1 : end].strip()
            if content:
                return content
        opening = text.rfind("{", 0, opening)
    return None
