"""The helper process: imports modules, then forks a child for each call and times it.

Run as `python -m services.reward_service.grading.helper_main CONTROL_FD NAME...`, where a name is a
module, or `module:function` to call once, so that no child has to do its work again.
"""

import contextlib
import ctypes
import importlib
import json
import math
import os
import pkgutil
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_MAX_STRETCH = 10.0
"""Times its limit that a call may take while it waits for a core on a busy machine."""
_POLL_S = 0.05


def main() -> None:
    """Serve calls until the service hangs up."""
    control = socket.socket(fileno=int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        for name in sys.argv[2:]:
            module, _, prepare = name.partition(":")
            loaded = importlib.import_module(module)
            if prepare:
                getattr(loaded, prepare)()
    except Exception as error:  # noqa: BLE001 - the edge: a module of the user's, reported to the service
        control.send(f"{type(error).__name__}: {error}"[:500].encode())
        return
    control.send(b"ready")
    calls: list[_Call] = []
    while True:
        ready = _ready(control, calls)
        for call in list(calls):
            ended = call.handle in ready
            if not ended and (call.stream.fileno() in ready or call.late()):
                call.kill()
                ended = True
            if ended:
                calls.remove(call)
                call.close()
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not message:
                return  # the children die with this process
            calls.append(_forked(control, socket.socket(fileno=descriptors[0]), message))


def _ready(control: socket.socket, calls: Sequence["_Call"]) -> set[int]:
    """Wait until there is something to do, or a limit is reached: the control socket if a call has
    come, handles of processes that have ended, streams that the service has closed."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    for call in calls:
        waiting.register(call.handle, select.POLLIN)
        waiting.register(call.stream, 0)  # closed at both ends, as when nobody waits any more
    look_at = min((call.look_at for call in calls), default=None)
    wait_s = None if look_at is None else max(0.0, look_at - time.monotonic())
    found = waiting.poll(None if wait_s is None else math.ceil(1000 * wait_s))
    return {number for number, _ in found}


def _forked(control: socket.socket, stream: socket.socket, message: bytes) -> "_Call":
    helper, child = os.getpid(), os.fork()
    if child == 0:
        control.close()
        _run(stream, helper)
    return _Call(child, stream, float(json.loads(message)["timeout_s"]))


class _Call:
    """One call in progress: a forked process with a deadline.

    Attributes:
        stream: to the service.
        handle: a pidfd of the process, readable when it has ended.
        look_at: reading of `time.monotonic()` at which it may be late.
    """

    def __init__(self, process_id: int, stream: socket.socket, timeout_s: float) -> None:
        self._process_id, self.stream = process_id, stream
        self.handle = os.pidfd_open(process_id)
        self._timeout_s, self._began = timeout_s, time.monotonic()
        self.look_at = self._began + timeout_s

    def late(self) -> bool:
        """Whether the limit is reached, without the time in which the call waited for a core."""
        now = time.monotonic()
        if now < self.look_at:
            return False
        waited_s = _waited_for_core_s(self._process_id)
        left_s = self._timeout_s - (now - self._began - waited_s)
        if left_s <= 0 or now - self._began >= longest_s(self._timeout_s):
            return True
        self.look_at = now + max(left_s, _POLL_S)
        return False

    def kill(self) -> None:
        """End the process, and say so to the service."""
        os.kill(self._process_id, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.stream.send(b'{"killed": true}', socket.MSG_DONTWAIT)
            # Closed with a request that the process had no time to read, the stream would end
            # as reset by its peer, as if the helper were gone.
            while self.stream.recv(1 << 16, socket.MSG_DONTWAIT):
                pass

    def close(self) -> None:
        """Reap the process, and tell the service that its reply is complete."""
        os.waitpid(self._process_id, 0)
        os.close(self.handle)
        with contextlib.suppress(OSError):  # processes of later calls have the stream as well
            self.stream.shutdown(socket.SHUT_WR)
        self.stream.close()


def longest_s(timeout_s: float) -> float:
    """Wall seconds at which a call with this limit is killed whatever it waited for."""
    return _MAX_STRETCH * timeout_s


def _waited_for_core_s(process_id: int) -> float:
    """Seconds in which a process could have run and had no core; 0 where the kernel does not say.

    The second field of `/proc/PID/schedstat`: Documentation/scheduler/sched-stats.rst.
    """
    try:
        return int(Path(f"/proc/{process_id}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _run(stream: socket.socket, helper: int) -> None:
    """Do one call in the child and end it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != helper:  # it died before this process could ask to die with it
        os._exit(1)
    try:
        with stream.makefile("rb") as incoming:
            request = json.loads(incoming.read())
        value = pkgutil.resolve_name(request["function"])(request["arguments"])
        reply = json.dumps({"value": value})
    except BaseException as error:  # noqa: BLE001 - the edge of the child: reported to the service
        kind = type(error).__name__
        reply = json.dumps({"error": f"{kind}: {error}"[:500], "kind": kind})
    with contextlib.suppress(OSError):
        stream.sendall(reply.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
