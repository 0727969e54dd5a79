"""A conversation as its client wrote it, reduced to digests.

Token ids alone decide what a trajectory is; this only tells why ids do not go on where the
conversation does.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HistoryMark:
    """The messages of one call: how many, and their digest."""

    length: int
    digest: bytes


class History:
    """The messages of a call; empty for a completion, whose prompt has none."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = messages
        running = hashlib.blake2b(digest_size=16)
        self._digests = [running.digest()]
        for message in messages:
            running.update(repr(_plain(message)).encode(errors="replace"))
            self._digests.append(running.digest())

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "History":
        """The messages in a request's body."""
        messages = body.get("messages")
        return cls(messages if isinstance(messages, list) else [])

    @property
    def mark(self) -> HistoryMark:
        """What is kept of it."""
        return HistoryMark(len(self._messages), self._digests[-1])

    def goes_on_from(self, mark: HistoryMark, answer: str) -> bool:
        """Whether it is `mark`, then what `answer` says, then perhaps more."""
        at = mark.length
        if not at or at >= len(self._messages) or self._digests[at] != mark.digest:
            return False
        role, text, calls = _plain(self._messages[at])
        if role != "assistant" or not all(name in answer for name in calls):
            return False
        text, answer = text.strip(), answer.strip()
        if calls and not text:
            return True
        # Reasoning is left out before the text, tool calls after it.
        return text == answer or (bool(text) and (answer.endswith(text) or answer.startswith(text)))


def _plain(message: Any) -> tuple[str, str, tuple[str, ...]]:
    """Role, text and names of called tools: what every framework passes back."""
    if not isinstance(message, dict):
        return "", repr(message), ()
    content = message.get("content") or ""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "".join(part if isinstance(part, str) else "" for part in parts)
    calls = message.get("tool_calls")
    functions = [
        call.get("function")
        for call in (calls if isinstance(calls, list) else [])
        if isinstance(call, dict)
    ]
    names = tuple(str(f.get("name")) for f in functions if isinstance(f, dict))
    return str(message.get("role")), str(content), names
