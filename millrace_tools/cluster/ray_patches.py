"""Patches of Ray: ids of forked workers, parameters without an argument of `ray.init`, its end."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def ray_parameters(**values: Any) -> Iterator[None]:
    """A node of Ray that is started inside the block has these parameters.

    Ray fills in parameters that are not set with `update_if_absent`, in its node's constructor.
    """
    from ray._private.parameter import RayParams

    original = RayParams.update_if_absent

    def filled_in(parameters: RayParams, **absent: Any) -> None:
        original(parameters, **absent)  # type: ignore[no-untyped-call]
        for name, value in values.items():
            getattr(parameters, name)  # raises where Ray has it no longer
            setattr(parameters, name, value)

    with mock.patch.object(RayParams, "update_if_absent", filled_in):
        yield


@contextmanager
def fork_safe_imports() -> Iterator[None]:
    """Actor classes that are imported inside the block get their ids from the kernel.

    Ray's ids come from a generator inside its library, seeded when it is first used. Processes
    forked after that draw the same ids, and two tasks of one id end the process that gets both.
    So imports must draw nothing, as Ray does for each class that is decorated as an actor.
    """
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


def end_before_destructors() -> None:
    """This process ends once Python has ended, before destructors of C++ that are known now.

    `ray.shutdown` leaves threads behind, more with each cluster, in which Ray's library collects
    and exports measurements. Processes crashed now and then after all was done, probably because
    these threads read what is freed while a process ends.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # called with the exit status
