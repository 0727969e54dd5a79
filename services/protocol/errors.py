"""Errors that services raise across their interfaces."""

from collections.abc import Iterator
from contextlib import contextmanager


class InvalidInput(ValueError):
    """Input that cannot be used: names the field, the value found and the fix."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = field, value, fix
        super().__init__(f"{field}: {value!r} is not usable. {fix}")

    def __reduce__(self) -> tuple[type["InvalidInput"], tuple[str, object, str]]:
        """Keep the three parts when the error crosses a process boundary."""
        return type(self), (self.field, self.value, self.fix)


class NotReady(RuntimeError):
    """A peer is starting, restarting or gone; the caller may retry until its own deadline."""


class NoResources(NotReady):
    """Nodes do not have the resources yet; an autoscaler may take any time to start some."""


class ReplicaLost(NotReady):
    """The replica that had the call in hand died with it; perhaps of it."""


@contextmanager
def portable_errors() -> Iterator[None]:
    """Raise an error of another's class as a RuntimeError that says the same.

    To load an error is to import the module of its class. One of vLLM's about a dead engine made
    Serve's controller import vLLM and torch, and it replaced nothing for half a minute.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("builtins", "millrace_tools", "services"):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
