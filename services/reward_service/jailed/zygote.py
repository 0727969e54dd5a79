"""The fork server in a slot: one child for each execution, one at a time.

It holds nothing of any job: the code and its input are read by the child, after it has
confined itself. Everything it answers comes from the kernel.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from typing import Any, NoReturn

from services.reward_service.jailed import answer, confine, tester

PROGRAM_FD, STDLIB_FD, CONFINED_FD = 59, 60, 61
REPORT_FD, CHANNEL_FDS = 3, (4, 5)
PRELOADED = """
abc argparse array ast atexit base64 bisect bz2 calendar cmath codecs collections collections.abc
colorsys concurrent.futures concurrent.futures.thread contextlib contextvars copy copyreg csv
ctypes dataclasses datetime decimal difflib dis encodings.ascii encodings.idna encodings.latin_1
encodings.utf_16 encodings.utf_8_sig enum fractions functools gc getopt graphlib hashlib heapq
hmac html html.parser inspect io itertools json keyword linecache locale logging math numbers
opcode operator pickle pprint queue random re reprlib secrets shlex signal statistics string
stringprep struct textwrap threading timeit token tokenize traceback types typing unicodedata uuid
warnings weakref zlib zoneinfo _strptime
"""
"""Modules that are imported before the first fork, so that an answer finds them at no cost."""
_CONFINED_S = 60.0
"""For a child to confine itself: only a hang takes longer, however busy the machine is."""
_CONFINED = struct.Struct("=dd")
"""A confined child's message before it runs the answer: the processor seconds it has used, and the
time. This process may read it late on a busy machine."""


def main(control: socket.socket) -> None:
    """Serve executions on `control` until its other end is closed."""
    settings = json.loads(control.recv(1 << 20))
    control = _clear_low_descriptors(control)
    try:
        server = ForkServer(settings, control)
    except OSError as error:
        control.send(json.dumps({"failed": f"{error}", "errno": error.errno}).encode())
        return
    control.send(json.dumps({"landlock_abi": server.landlock_abi}).encode())
    while server.serve_one():
        pass


class ForkServer:
    """Confines itself as far as a parent can and then forks.

    Raises:
        OSError: a layer of the jail is missing.
    """

    def __init__(self, settings: dict[str, Any], control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._filters = {
            kind: (bytes.fromhex(program), int(own_pid_at))
            for kind, (program, own_pid_at) in settings["filters"].items()
        }
        self._processes = int(settings["processes"])
        if settings["stdlib_by_fd"]:
            _import_by_descriptor(settings["stdlib"])
        for name in PRELOADED.split():
            try:
                importlib.import_module(name)
            except ImportError:  # an interpreter built without this library
                continue
        self.landlock_abi, self._ruleset = confine.create_ruleset(settings["paths"])
        confine.use_one_malloc_arena()
        confine.drop_privileges(settings["user_id"])
        self._confined, writer = os.pipe()
        os.set_blocking(self._confined, False)
        os.dup2(writer, CONFINED_FD)
        os.close(writer)
        gc.collect()
        gc.freeze()
        self._own_address_space = confine.address_space_in_use()

    def serve_one(self) -> bool:
        """Run one execution; false when the service has hung up."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
        if not message:
            return False
        order = json.loads(message)
        try:
            reply = self._execute(order, descriptors)
        except OSError as error:
            reply = {"failed": str(error)}
        for descriptor in descriptors:
            os.close(descriptor)
        self._control.send(json.dumps(reply).encode())
        return True

    def _execute(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        child = os.fork()
        if child == 0:
            self._become_answer(order, descriptors)
        handle = os.pidfd_open(child)
        try:
            confined = self._wait_until_confined(child, handle)
            own_cpu_s, began = confined or (0.0, time.monotonic())
            killed = None
            if confined is not None:  # the limits are the answer's, and it began then
                other = descriptors[-2] if order["channel"] else None
                killed = self._watch(child, handle, confined, order, other)
        finally:
            os.close(handle)
        _, status, usage = os.wait4(child, 0)
        if os.getpid() == 1:  # of a process namespace: end whatever could still be in it
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(status)
        return {
            "exit_code": ended,
            # A process that was ending by itself when its limit came was not killed.
            "killed": killed if ended == -signal.SIGKILL else None,
            "confined": confined is not None,
            "cpu_s": max(0.0, usage.ru_utime + usage.ru_stime - own_cpu_s),
            "wall_s": time.monotonic() - began,
            "peak_kb": usage.ru_maxrss,
        }

    def _wait_until_confined(self, child: int, handle: int) -> tuple[float, float] | None:
        """Wait until the child is confined; no answer can forge its message.

        Returns:
            Processor seconds of the child until then, and the time then; None if it ended or
            hung before.
        """
        waiting = select.poll()
        for descriptor in (handle, self._confined, self._control.fileno()):
            waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(1000 * _CONFINED_S)}
        if self._control.fileno() in ready:
            self._leave(child)
        try:
            own_cpu_s, began = _CONFINED.unpack(os.read(self._confined, _CONFINED.size))
        except BlockingIOError:
            os.kill(child, signal.SIGKILL)
            return None
        return own_cpu_s, began

    def _watch(
        self,
        child: int,
        handle: int,
        confined: tuple[float, float],
        order: dict[str, Any],
        other: int | None,
    ) -> str | None:
        """Wait for the child and kill it at a limit; None if it ended by itself.

        The limits are `cpu`, `wall`, and `peer_ended`: the jail at the other end of its channel,
        of which `other` is the descriptor to read from, ended and the child did not.
        """
        child_clock = (~child << 3) | 2  # clock_getcpuclockid(3): all threads of a process
        cpu_s, deadline = confined[0] + order["cpu_s"], confined[1] + order["wall_s"]
        left = False
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.register(self._control, select.POLLIN)
        if other is not None:
            waiting.register(other, 0)  # tells only of its end
        while True:
            try:
                cpu_left = cpu_s - time.clock_gettime(child_clock)
            except OSError:  # it has just ended
                cpu_left = cpu_s
            wall_left = deadline - time.monotonic()
            if cpu_left <= 0 or wall_left <= 0:
                os.kill(child, signal.SIGKILL)
                return "cpu" if cpu_left <= 0 else "peer_ended" if left else "wall"
            wait_s = max(0.001, min(cpu_left, wall_left))
            ready = {descriptor for descriptor, _ in waiting.poll(1000 * wait_s)}
            if handle in ready:
                return None
            if self._control.fileno() in ready:  # nothing is sent while a job runs
                self._leave(child)
            if other in ready:
                waiting.unregister(other)
                left, deadline = True, min(deadline, time.monotonic() + order["peer_ended_s"])

    @staticmethod
    def _leave(child: int) -> NoReturn:
        """End with the child: the service is gone."""
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    def _become_answer(self, order: dict[str, Any], descriptors: list[int]) -> None:
        """Confine this process, then read and run the answer; never returns."""
        status = 1
        try:
            payload_fd = self._take_descriptors(order, descriptors)
            for number in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores both
                signal.signal(number, signal.SIG_DFL)
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:  # it died before it could be watched
                os._exit(1)
            confine.limit_resources(
                cpu_s=int(order["cpu_s"]) + 2,
                address_space=self._own_address_space + order["memory"],
                file_size=order["output"],
                processes=self._processes,
                stack=order["memory"] if order["program"] else 64 << 20,
            )
            kind = "program" if order["program"] else "source"
            confine.seal(self._ruleset, *self._filters[kind])
            os.write(CONFINED_FD, _CONFINED.pack(time.process_time(), time.monotonic()))
            os.closerange(CONFINED_FD, 1 << 16)
            os.close(self._ruleset)
            if order["program"]:
                os.close(payload_fd)
                os.close(STDLIB_FD)
                confine.execute(PROGRAM_FD)
            payload = json.loads(os.pread(payload_fd, os.fstat(payload_fd).st_size, 0))
            os.close(payload_fd)
            answer.renew_standard_streams()
            report = answer.reporter(REPORT_FD)
            if "tests" in payload:  # on an answer at the channel's other end
                tester.run_tests(payload, report, CHANNEL_FDS)
                status = 0
            else:
                status = answer.run_answer(payload, report, CHANNEL_FDS)
        except BaseException:  # noqa: BLE001 - the edge of the child: its status tells
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)

    def _take_descriptors(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """Put each where the answer expects it; close all others but the needed."""
        payload, *rest = descriptors
        places = [0, 1, 2, REPORT_FD]
        places += [PROGRAM_FD] if order["program"] else []
        places += CHANNEL_FDS if order["channel"] else []
        for place, descriptor in zip(places, rest, strict=True):
            os.dup2(descriptor, place, inheritable=place != PROGRAM_FD)
        kept = sorted({payload, self._ruleset, STDLIB_FD, CONFINED_FD, *places[4:]})
        start = REPORT_FD + 1
        for descriptor in kept:
            os.closerange(start, descriptor)
            start = descriptor + 1
        os.closerange(start, 1 << 16)
        return payload


def _clear_low_descriptors(control: socket.socket) -> socket.socket:
    """Move the control socket up and hold the numbers that children give a meaning."""
    moved = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, CONFINED_FD + 1)
    control.close()
    for number in (REPORT_FD, *CHANNEL_FDS, PROGRAM_FD, STDLIB_FD, CONFINED_FD):
        os.dup2(0, number)
    return socket.socket(fileno=moved)


def _import_by_descriptor(stdlib: str) -> None:
    """Let imports work for a user who may not enter the folders above the standard library.

    A path through /proc/self/fd starts at the opened folder itself.
    """
    folder = os.open(stdlib, os.O_PATH | os.O_DIRECTORY)
    os.dup2(folder, STDLIB_FD)
    os.close(folder)
    root = f"/proc/self/fd/{STDLIB_FD}"
    sys.path[:] = [root, f"{root}/lib-dynload"]
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if places is not None:  # a package that is loaded already has more modules to find
            places[:] = [root + place.removeprefix(stdlib) for place in places]
