"""Does one fault, waits, and undoes it, whatever becomes of whoever asked for it.

A process of its own on the node of the fault. It is given the order as JSON in its only
argument, and the other end of its standard input is its owner's life: a fault is undone when
its time is over or when its owner ends, whichever is first. It leaves the family of whoever
started it, so that Ray, which ends the children of a worker, lets it undo.
"""

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Protocol

from millrace_tools.chaos.faults.cut import Cut
from millrace_tools.chaos.faults.fill import Fill
from millrace_tools.chaos.faults.freeze import Freeze
from millrace_tools.chaos.faults.kill import Kill
from millrace_tools.chaos.faults.skew import Skew
from millrace_tools.chaos.faults.slow import Slow

DONE = "done"
_KINDS: dict[str, type["Undoable"]] = {
    "kill": Kill,
    "freeze": Freeze,
    "slow": Slow,
    "fill": Fill,
    "skew": Skew,
    "cut": Cut,
}


class Undoable(Protocol):
    """A fault as the keeper plays it."""

    def __init__(self, order: dict[str, Any]) -> None: ...

    def begin(self) -> None:
        """Do it.

        Raises:
            OSError: it cannot be done; nothing is left to undo.
        """

    def tick(self) -> float:
        """What recurs while it lasts; seconds until the next time."""

    def end(self) -> None:
        """Undo it; safe where the target has ended meanwhile."""


def main() -> None:
    """Play the order of the command line; says `done`, or why not, when it has begun."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    os.setsid()
    if os.fork():
        os._exit(0)  # an orphan from here on
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        fault = _KINDS[order["fault"]](order)
        fault.begin()
    except OSError as error:
        _say(f"{type(error).__name__}: {error}")
        return
    try:
        _say(DONE)
        _wait(fault, order["seconds"] or 0.0)
    finally:
        fault.end()


def _wait(fault: Undoable, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        readable, _, _ = select.select([sys.stdin], [], [], min(left, fault.tick()))
        if readable:  # its owner has closed its end, or has ended
            return


def _say(line: str) -> None:
    with suppress(BrokenPipeError):  # its owner has ended; what was begun is undone at once
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main()
