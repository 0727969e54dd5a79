"""How the commands of the adapters end where their input cannot be used."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from services.protocol.errors import InvalidInput


@contextmanager
def problems_on_stderr() -> Iterator[None]:
    """End the process with status 2 and the problem in one line; it also decorates a function."""
    try:
        yield
    except InvalidInput as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(2)
