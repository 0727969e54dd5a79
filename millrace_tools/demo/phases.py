"""The phases of a demo, each with its time."""

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console


class Phases:
    """Prints a line per finished phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._began

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside; a phase that fails prints nothing."""
        began = time.monotonic()
        self._console.print(f"[dim]{self.elapsed_s:6.1f} s[/]  {name}", highlight=False)
        yield
        took = time.monotonic() - began
        self._console.print(f"[dim]{self.elapsed_s:6.1f} s[/]  [green]done[/] in {took:.1f} s")
