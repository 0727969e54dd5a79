"""Plain numbers in answers: read exactly, without any computer algebra. Pure functions."""

import math
import re
from fractions import Fraction

_SIGNED = r"[-+]?"
_GROUPED = re.compile(rf"{_SIGNED}\d{{1,3}}(,\d{{3}})+(\.\d+)?")
_DECIMAL = re.compile(rf"{_SIGNED}(\d+\.?\d*|\.\d+)(e{_SIGNED}\d{{1,3}})?", re.IGNORECASE)
_SLASH = re.compile(rf"({_SIGNED}\d+)\s*/\s*(\d+)")
_FRAC = re.compile(r"([-+]?)\\[dt]?frac\{?([-+]?\d+)\}?\{?(\d+)\}?")
_FORMATTING = (r"\left", r"\right", r"\!", r"\,", r"\;", r"\ ", "$", " ")
_MAX_CHARACTERS = 200


def plain(text: str) -> str:
    """An answer without the dressing that changes nothing: dollars, spaces, a final stop."""
    for part in _FORMATTING:
        text = text.replace(part, "")
    return text.strip().rstrip(".")


def number(text: str) -> Fraction | None:
    """The exact value of a number literal, None for anything else.

    Known are integers, decimals, thousands separators, `a/b`, LaTeX fractions and per cent.
    """
    text = plain(text)
    if len(text) > _MAX_CHARACTERS:
        return None
    if text.endswith("%"):
        value = number(text.rstrip("%").rstrip("\\"))
        return None if value is None else value / 100
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    parts = _ratio(text)
    if parts is None or parts[1] == 0:
        return None
    return Fraction(*parts)


def is_reduced(text: str) -> bool:
    """Whether a number literal is in lowest terms; true for all that is no fraction."""
    parts = _ratio(plain(text))
    return parts is None or (parts[1] != 1 and math.gcd(*parts) == 1)


def _ratio(text: str) -> tuple[int, int] | None:
    if match := _SLASH.fullmatch(text):
        return int(match[1]), int(match[2])
    if match := _FRAC.fullmatch(text):
        sign = -1 if match[1] == "-" else 1
        return sign * int(match[2]), int(match[3])
    return None


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds that is not empty, None if there is none."""
    end = len(text)
    while (start := text.rfind(r"\boxed{", 0, end)) >= 0:
        content = _braced(text, start + len(r"\boxed{"))
        if content is not None and content.strip():
            return content.strip()
        end = start
    return None


def _braced(text: str, start: int) -> str | None:
    """Text up to the brace that closes, None if none does within a few thousand characters."""
    depth = 1
    for at in range(start, min(len(text), start + 4096)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return text[start:at]
    return None
