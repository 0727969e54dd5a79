"""A rank that stands still, or is slow, at a chosen point of its work."""

import os
import signal
import threading
import time
from dataclasses import dataclass

import torch

from services.trainer.heartbeat import HEARTBEAT


@dataclass(frozen=True)
class Halt:
    """What happens when the rank enters a phase for the nth time.

    Attributes:
        how: `freeze` stops the process, `block` the torch thread; `compute` keeps it busy for
            `seconds` without a mark.
    """

    phase: str
    how: str
    nth: int = 1
    seconds: float = 0.0

    def install(self) -> None:
        enter, entered = HEARTBEAT.enter, []

        def enter_and_halt(phase: str, done: int = 0, total: int = 0) -> None:
            enter(phase, done, total)
            entered.append(phase)
            if phase == self.phase and entered.count(phase) == self.nth:
                self._halt()

        HEARTBEAT.enter = enter_and_halt  # type: ignore[method-assign]

    def _halt(self) -> None:
        if self.how == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.how == "block":
            threading.Event().wait(600.0)
        else:
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                torch.ones(64, 64) @ torch.ones(64, 64)
