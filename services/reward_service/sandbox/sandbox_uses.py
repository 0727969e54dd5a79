"""Which sandboxes the answer in hand takes, and for how long."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from services.protocol.reward.reward_service import SandboxUse

_MOST = 16
_HERE = f"{socket.gethostname()}-{os.getpid()}"
_uses: ContextVar[list[SandboxUse] | None] = ContextVar("sandbox_uses", default=None)


@contextmanager
def noted_uses() -> Iterator[list[SandboxUse]]:
    """The list that `using` adds to, in this task and those that it starts."""
    noted: list[SandboxUse] = []
    token = _uses.set(noted)
    try:
        yield noted
    finally:
        _uses.reset(token)


@contextmanager
def using(number: int) -> Iterator[None]:
    """The answer has sandbox `number` of this process."""
    began_at, began = time.time(), time.monotonic()
    try:
        yield
    finally:
        noted = _uses.get()
        if noted is not None and len(noted) < _MOST:
            seconds = time.monotonic() - began
            name = f"{_HERE}/{number}"
            noted.append(SandboxUse(sandbox=name, began_at=began_at, seconds=seconds))
