"""The files of the sockets between a replica and its engine's processes.

vLLM makes them in the temporary folder and never removes them. A connected socket needs its
file no more, so they go as soon as the engine is up: what is not there cannot be left behind
by a replica that is killed.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "VLLM_RPC_BASE_PATH"  # vLLM reads it whenever it makes a socket


@contextmanager
def engine_sockets() -> Iterator[None]:
    """Start the engine inside; its socket files are gone afterwards."""
    before = os.environ.get(_VARIABLE)
    # A short name: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="vllm-", dir=before) as folder:
        os.environ[_VARIABLE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before
