"""Regular expressions over answers; runs in a helper process only, so it imports nothing."""

import re


def last_group(arguments: dict[str, str]) -> str | None:
    """The first group of the last match."""
    found = None
    for match in re.finditer(arguments["pattern"], arguments["text"], re.DOTALL):
        found = match[1]
    return found


def occurs(arguments: dict[str, str]) -> bool:
    """Whether the pattern matches anywhere."""
    return re.search(arguments["pattern"], arguments["text"]) is not None


def fits(arguments: dict[str, str]) -> bool:
    """Whether the pattern matches all of the text."""
    return re.fullmatch(arguments["pattern"], arguments["text"]) is not None
