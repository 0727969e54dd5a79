"""Figures as people read them; the same in a browser, in a report and in a terminal."""

import math

MISSING = "–"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LARGE = 1e6


def percent(share: float) -> str:
    """A share, such as `57.0%`."""
    return f"{share:.1%}"


def count(value: float) -> str:
    """A whole number, such as `17,530`."""
    return f"{round(value):,}"


def number(value: float) -> str:
    """A number of any size to three or four digits."""
    size = abs(value)
    if size and (size < 1e-3 or size >= _LARGE):
        return f"{value:.1e}"
    text = f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 3}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """A time in its two largest units, such as `1 h 12 min`."""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s" if seconds else "0 s"
    if round(seconds) < _HOUR:
        return "{} min {} s".format(*divmod(round(seconds), 60))
    minutes = round(seconds / _MINUTE)
    if _MINUTE * minutes < _DAY:
        return "{} h {} min".format(*divmod(minutes, 60))
    return f"{seconds / _DAY:.1f} d"


def shown(value: object) -> str:
    """Any value of a configuration; `–` for none."""
    if value is None or value in ("", [], {}):
        return MISSING
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value)
