"""The bound on connections. Those above it are answered, counted, and logged once a minute."""

import asyncio
import errno
import json
import time
from collections.abc import Callable
from typing import Any

from services.http.error_answer import error_body
from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.open_files import most_connections
from services.router.config import RouterConfig

ACCEPTED_AT_ONCE = 16
"""The `backlog` for asyncio, which accepts as many before it looks at the first of them: so
many may be above the bound for a moment. The kernel's own backlog may be longer."""

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_SILENCE_S = 60.0
_BODY = json.dumps(
    error_body(
        "The router has as many connections as it may have; come again in a second.",
        kind="too_many_connections",
        code=503,
    )
).encode()
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


_LOG = Log("router")


class RefusedConnections:
    """Those of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent_until = clock()
        self._since = 0

    def refuse(self, transport: asyncio.Transport) -> None:
        """Answer a connection that has just been accepted, in OpenAI's shape, and close it."""
        transport.write(_ANSWER)
        transport.close()
        self._count("bound")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count what cannot be accepted for want of a descriptor; other errors go on as before.

        asyncio says so for each attempt and tries again after a second: the connection waits.
        uvloop closes it and says nothing.
        """
        before = loop.get_exception_handler()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
                self._count("no_descriptor")
            elif before is not None:
                before(loop, context)
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(handle)

    def _count(self, reason: str) -> None:
        RouterMetrics.refused_connections.inc(tags={"reason": reason})
        self._since += 1
        if self._clock() >= self._silent_until:
            _LOG.warning("connections_refused", reason=reason, connections=self._since)
            self._silent_until, self._since = self._clock() + _SILENCE_S, 0


refused = RefusedConnections()


def bounded(config: RouterConfig, open_files: int) -> RouterConfig:
    """The settings with no more connections and requests than a limit of open files allows.

    A router that accepts no more than it can hold never runs out of descriptors in the middle of
    its work.
    """
    share = most_connections(open_files)
    asked = {name: getattr(config, name) for name in ("max_connections", "max_open_requests")}
    update: dict[str, object] = {name: share for name, most in asked.items() if most > share}
    if config.listen is not None and config.listen.max_connections > share:
        update["listen"] = config.listen.model_copy(update={"max_connections": share})
    if update:
        _LOG.warning("connections_bounded", open_files=open_files, most=share, fields=[*update])
    return config.model_copy(update=update)
