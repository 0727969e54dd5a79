"""What the stages of an acceptance share: options, the machine, the running services."""

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from millrace_tools.accept.deadline import Deadline, StageLate
from millrace_tools.accept.report import Hardware

if TYPE_CHECKING:  # imports Ray, which takes seconds
    from millrace_tools.accept.services import Services


class ProgramFailed(Exception):
    """A program that measures has failed; the message is the last line that it wrote."""


@dataclass(kw_only=True)
class Bench:
    """Shared by the stages of one acceptance.

    Attributes:
        folder: of the report, and of runs and logs.
        quick: shorten stages.
        address: of a Ray cluster whose nodes are measured, None for none.
        hardware: this machine.
        console: for the status of services that start.
        ending: ends what stages started.
        services: None where they do not run.
    """

    folder: Path
    quick: bool
    address: str | None
    hardware: Hardware
    console: Console
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    services: "Services | None" = None

    @property
    def gpus(self) -> int:
        """Number of GPUs of this machine."""
        return len(self.hardware.gpus)

    @property
    def running(self) -> "Services":
        """The services, of a stage that needs them."""
        assert self.services is not None, "the runner does not try such a stage without them"
        return self.services


def measured_by(module: str, *arguments: str, deadline: Deadline) -> dict[str, Any]:
    """The figures that a program prints as JSON, which may load torch.

    Raises:
        ProgramFailed: it failed.
        StageLate: it did not end in time.
    """
    limit_s = deadline.left_s(module)
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise StageLate(f"not in {limit_s:.0f} s: {module}") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ProgramFailed(said[-1])
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures
