"""Parameters of a node of Ray that `ray.init` has no argument for: a patch of Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ray._private.parameter import RayParams


@contextmanager
def ray_parameters(**values: Any) -> Iterator[None]:
    """A node that is started meanwhile has these.

    Ray fills in what was left open with `update_if_absent`, in the constructor of its node.
    """
    original = RayParams.update_if_absent

    def filled_in(parameters: RayParams, **absent: Any) -> None:
        original(parameters, **absent)  # type: ignore[no-untyped-call]
        for name, value in values.items():
            getattr(parameters, name)  # raises where Ray has it no longer
            setattr(parameters, name, value)

    with mock.patch.object(RayParams, "update_if_absent", filled_in):
        yield
