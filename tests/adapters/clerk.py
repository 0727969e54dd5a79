"""A client of an environment that says given lines, and remembers what it was told."""

from types import SimpleNamespace
from typing import Any


class Clerk:
    """Says these lines in turn; `heard` is the last conversation."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.heard: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[dict[str, Any]], **_: object) -> SimpleNamespace:
        self.heard = list(messages)
        message = SimpleNamespace(content=self._lines.pop(0))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])
