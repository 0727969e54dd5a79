"""The helper process: imports modules, then forks a child for each call and times it.

Run as `python -m services.reward_service.grading.helper_main CONTROL_FD MODULE...`.
"""

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve calls until the service hangs up."""
    control = socket.socket(fileno=int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        for name in sys.argv[2:]:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - the edge: a module of the user's, said to the service
        control.send(f"{type(error).__name__}: {error}"[:500].encode())
        return
    control.send(b"ready")
    _Children(control).serve()


class _Children:
    """The calls in progress: each a forked process with a deadline."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._running: dict[int, tuple[int, float, socket.socket]] = {}

    def serve(self) -> None:
        while True:
            wait = min((end for _, end, _ in self._running.values()), default=None)
            timeout = None if wait is None else max(0.0, wait - time.monotonic())
            control = self._control.fileno()
            ready, _, _ = select.select([control, *self._running], [], [], timeout)
            for handle in [handle for handle in self._running if handle in ready]:
                self._finish(handle)
            self._kill_late()
            if control in ready and not self._accept():
                return

    def _accept(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        if not message:
            return False  # the children die with this process
        stream = socket.socket(fileno=descriptors[0])
        child = os.fork()
        if child == 0:
            self._control.close()
            _run(stream)
        deadline = time.monotonic() + float(json.loads(message)["timeout_s"])
        self._running[os.pidfd_open(child)] = (child, deadline, stream)
        return True

    def _finish(self, handle: int) -> None:
        child, _, stream = self._running.pop(handle)
        os.waitpid(child, 0)
        os.close(handle)
        stream.close()

    def _kill_late(self) -> None:
        now = time.monotonic()
        for child, deadline, stream in list(self._running.values()):
            if deadline <= now:
                os.kill(child, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    stream.send(b'{"killed": true}', socket.MSG_DONTWAIT)
        for handle in [h for h, (_, deadline, _) in self._running.items() if deadline <= now]:
            self._finish(handle)


def _run(stream: socket.socket) -> None:
    """Do one call in the child and end it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with stream.makefile("rb") as incoming:
            request = json.loads(incoming.read())
        value = _function(request["function"])(request["arguments"])
        reply = json.dumps({"value": value})
    except BaseException as error:  # noqa: BLE001 - the edge of the child: told to the service
        reply = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
    with contextlib.suppress(OSError):
        stream.sendall(reply.encode())
    os._exit(0)


def _function(place: str) -> Callable[[Any], Any]:
    module, _, name = place.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function


if __name__ == "__main__":
    main()
