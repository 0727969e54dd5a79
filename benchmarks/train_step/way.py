"""A process that measures, and the talk with it."""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.processes import next_message, start


class Way:
    """A process that measures one thing at a time, when it is asked."""

    def __init__(self, python: Path, module: str, *arguments: Any) -> None:
        module = f"train_step.{module}"
        self._process = start(module, *arguments, python=python, stdin=subprocess.PIPE)

    def ready(self) -> None:
        """Wait until it can be asked."""
        next_message(self._process)

    def ask(self, name: str) -> Any:
        """The figures of one measurement."""
        self.begin(name)
        return self.found()

    def begin(self, name: str) -> None:
        """Have it measure, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()

    def found(self) -> Any:
        """The figures of what was begun."""
        return next_message(self._process)["found"]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
