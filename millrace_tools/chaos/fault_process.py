"""A process that begins one fault on its node, waits, and undoes it.

It gets the fault as JSON in its only argument. Standard input is the connection to the command
that asked for the fault: the fault is undone when its time is over or when that connection
ends, whichever is first. The process detaches from its parent, because Ray ends the children of
a worker.
"""

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from millrace_tools.chaos.faults.cut import Cut
from millrace_tools.chaos.faults.fault_action import FaultAction
from millrace_tools.chaos.faults.fill import Fill
from millrace_tools.chaos.faults.signals import Freeze, Kill, Slow
from millrace_tools.chaos.faults.skew import Skew

DONE = "done"
_ACTIONS = {one.__name__.lower(): one for one in (Kill, Freeze, Slow, Fill, Skew, Cut)}


def main() -> None:
    """Inject the fault of the command line; prints `done`, or the error, when it has begun."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    os.setsid()
    if os.fork():
        os._exit(0)  # an orphan from here on
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        fault = _ACTIONS[order["fault"]](order)
        fault.begin()
    except OSError as error:
        _print(f"{type(error).__name__}: {error}")
        return
    try:
        _print(DONE)
        _wait(fault, order["seconds"] or 0.0)
    finally:
        fault.end()


def _wait(fault: FaultAction, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        readable, _, _ = select.select([sys.stdin], [], [], min(left, fault.tick()))
        if readable:  # the command has closed its end, or has ended
            return


def _print(line: str) -> None:
    with suppress(BrokenPipeError):  # the reader has ended; the fault is undone at once
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main()
