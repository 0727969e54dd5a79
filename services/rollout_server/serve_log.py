"""Serve's own log of this process survives what an engine's libraries do to logging.

vLLM and uvicorn configure logging by `dictConfig`, which closes every handler of the process,
and Serve's handler, which buffers, loses its file by that. A controller that has just been
restarted asks every running replica for the name of that file before it takes it over; one
that fails to answer is stopped. So all rollout servers ended with Serve's controller.
"""

import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager

SERVE_LOGGER = "ray.serve"


@contextmanager
def serve_log_kept() -> Iterator[None]:
    """However logging is configured inside, Serve's handlers write where they wrote before."""
    handlers = logging.getLogger(SERVE_LOGGER).handlers
    buffered = [one for one in handlers if isinstance(one, logging.handlers.MemoryHandler)]
    targets = [one.target for one in buffered]
    try:
        yield
    finally:
        for handler, target in zip(buffered, targets, strict=True):
            handler.setTarget(target)
