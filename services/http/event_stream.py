"""Server-sent events in every spelling that servers use, and the deadline of a stream."""

import asyncio
import math
from collections.abc import Callable

END = b"[DONE]"
"""The data of the last event of a stream of OpenAI's API."""

_LONGEST = 1 << 26
"""Bytes of one event: a long prompt's logprobs fit, and no server can fill our memory."""


class EventTooLong(ValueError):
    """An event has no end."""


class EventStream:
    """Cuts bytes into the data of events; comments and other fields are left out."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that are whole with these bytes.

        Raises:
            EventTooLong: an event has no end.
        """
        events: list[bytes] = []
        first, *others = received.split(b"\n")
        self._line.append(first)
        for begin in others:
            self._end_line(events)
            self._line = [begin]
        self._size = 0 if events else self._size + len(received)
        if self._size > _LONGEST:
            raise EventTooLong(f"an event of more than {_LONGEST} bytes")
        return events

    def _end_line(self, events: list[bytes]) -> None:
        line = b"".join(self._line).removesuffix(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            # The lines of one event are JSON together, which has no line ends inside of strings.
            events.append(b" ".join(self._data))
            self._data = []


class StallTimer:
    """Calls `expire` when one of many short waits takes too long. Must be closed.

    It costs two numbers a wait: a timer for each would cost a stream more than reading its events.

    Args:
        expire: ends the wait; called once at most.
    """

    def __init__(self, expire: Callable[[], object]) -> None:
        self._loop, self._expire = asyncio.get_running_loop(), expire
        self._due, self._looks_at = math.inf, math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """A wait begins that may take so long."""
        self._due = self._loop.time() + seconds
        if self._due < self._looks_at:
            self._look_at(self._due)

    def end(self) -> None:
        """The wait is over."""
        self._due = math.inf

    def close(self) -> None:
        """No wait will follow."""
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        if self._due <= self._loop.time():
            self._expire()
        elif self._due < math.inf:
            self._look_at(self._due)
