"""Keeps copies of a process from drawing the same ids: a patch of Ray.

Ray's ids come from a generator inside its library, seeded when it is first used. Processes that
are forked after that draw the same ids as each other, and two tasks of one id end the process that
is asked for both. Importing must therefore draw nothing, which Ray does for each class that is
decorated as an actor.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def fork_safe_imports() -> Iterator[None]:
    """Actor classes that are imported meanwhile get their ids from the kernel."""
    from ray import actor

    original = actor.ActorClassID  # type: ignore[attr-defined]

    class FromKernel:
        @staticmethod
        def from_random() -> Any:
            return original(os.urandom(original.size()))

    with mock.patch.object(actor, "ActorClassID", FromKernel):
        yield


def refuse_shared_randomness() -> None:
    """Check that two copies of this process draw different ids.

    Raises:
        RuntimeError: they draw the same.
    """
    if _drawn_in_a_copy() == _drawn_in_a_copy():
        raise RuntimeError("something that was imported has drawn from Ray's generator of ids")


def _drawn_in_a_copy() -> bytes:
    from ray import ObjectRef

    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, ObjectRef.from_random().binary())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as drawn:
        return drawn.read()
