"""The fork server in a slot: one child for each execution, one at a time.

It holds nothing of any job: the code and its input are read by the child, after it has
confined itself. Everything it answers comes from the kernel.
"""

import contextlib
import errno
import fcntl
import gc
import json
import marshal
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import Any, NoReturn

from services.reward_service.jailed import answer, confine, kinds, launcher, tester
from services.reward_service.jailed.orders import KILLED, SOURCE, Facts, Order, encode_reply

REPORT_FD, CHANNEL_FDS, CODE_FD = 3, (4, 5), 6
STDLIB_FD, CONFINED_FD = 60, 61
_READ_ONLY = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_CONFINED_S = 60.0
"""For a child to confine itself: only a hang takes longer, however busy the machine is."""
_CONFINED = struct.Struct("=dd")
"""A confined child's message before it runs the answer: the processor seconds it has used, and the
time. This process may read it late on a busy machine."""


def main(control: socket.socket) -> None:
    """Serve executions on `control` until its other end is closed."""
    settings = json.loads(control.recv(1 << 20))
    given = settings["launcher"] or ()
    moved, *given = _clear_low_descriptors(control.detach(), *given)
    control = socket.socket(fileno=moved)
    loaded, hello = None, dict[str, Any]()
    try:
        loaded = launcher.Launcher(*given) if given else None
    except OSError as error:  # what is left is slower, and no weaker
        hello["not_loaded"] = str(error)
    try:
        server = ForkServer(settings, control, loaded)
    except OSError as error:
        control.send(json.dumps({"failed": f"{error}", "errno": error.errno}).encode())
        return
    control.send(json.dumps({**hello, "landlock_abi": server.landlock_abi}).encode())
    server.serve()


class ForkServer:
    """Confines itself as far as a parent can and then forks.

    Raises:
        OSError: a layer of the jail is missing.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        control: socket.socket,
        loaded: launcher.Launcher | None,
    ) -> None:
        self._control, self._launcher = control, loaded
        self._pid = os.getpid()
        self._processes = int(settings["processes"])
        if settings["stdlib_by_fd"]:
            confine.import_by_descriptor(settings["stdlib"], STDLIB_FD)
        confine.use_one_malloc_arena()
        answer.prepare_interpreter()
        gc.collect()
        gc.freeze()
        if loaded is not None:
            loaded.prepare()
        self.landlock_abi, self._kinds = kinds.prepared(settings["kinds"].values())
        confine.drop_privileges(settings["user_id"])
        self._confined, writer = os.pipe()
        os.set_blocking(self._confined, False)
        os.dup2(writer, CONFINED_FD)
        os.close(writer)
        gc.freeze()
        self._own_address_space = confine.address_space_in_use()

    def serve(self) -> None:
        """Run executions until the service hangs up."""
        if self._launcher is None:
            while self._serve_one():
                pass
            return
        control, own = self._control.fileno(), self._own_address_space
        if self._launcher.serve(control, own, self._processes, self._kinds):
            _run_answer()

    def _serve_one(self) -> bool:
        """Run one order; false when the service has hung up."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
        if not message:
            return False
        error, facts = 0, list[Facts]()
        try:
            self._run_order(Order.decode(message), descriptors, facts)
        except OSError as problem:
            error = problem.errno or errno.EIO
        for descriptor in descriptors:
            os.close(descriptor)
        self._control.send(encode_reply(error, facts))
        return True

    def _run_order(self, order: Order, descriptors: list[int], facts: list[Facts]) -> None:
        """Run the tests until one does not end well."""
        code, inputs, outputs, *lent = descriptors
        started, at, used_s = time.monotonic(), 0, 0.0
        for size in order.stdin:
            if facts and time.monotonic() - started >= order.begin_s:
                return
            files = [os.memfd_create("slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)]
            files += [os.memfd_create("slot") for _ in range(3)]
            try:
                _copy(files[0], inputs, at, size)
                os.lseek(files[0], 0, os.SEEK_SET)
                fcntl.fcntl(files[0], fcntl.F_ADD_SEALS, _READ_ONLY)
                wall_s = min(order.wall_s, order.longest_s - used_s)
                ended = self._execute(order, wall_s, [*files, code, *lent])
                sizes = [os.fstat(file).st_size for file in files[1:]]
                for file, written in zip(files[1:], sizes, strict=True):
                    _copy(outputs, file, 0, written)
            finally:
                for file in files:
                    os.close(file)
            facts.append(replace(ended, stdout=sizes[0], stderr=sizes[1], report=sizes[2]))
            at, used_s = at + size, used_s + ended.wall_s
            if ended.exit_code or not ended.confined:
                return

    def _execute(self, order: Order, wall_s: float, descriptors: list[int]) -> Facts:
        child = os.fork()
        if child == 0:
            self._become_answer(order, descriptors)
        handle = os.pidfd_open(child)
        try:
            confined = self._wait_until_confined(child, handle)
            own_cpu_s, began = confined or (0.0, time.monotonic())
            killed = None
            if confined is not None:  # the limits are the answer's, and it began then
                other = descriptors[-2] if order.lent == len(CHANNEL_FDS) else None
                killed = self._watch(child, handle, confined, order, wall_s, other)
        finally:
            os.close(handle)
        _, status, usage = os.wait4(child, 0)
        if os.getpid() == 1:  # of a process namespace: end whatever could still be in it
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(status)
        return Facts(
            cpu_s=max(0.0, usage.ru_utime + usage.ru_stime - own_cpu_s),
            wall_s=time.monotonic() - began,
            peak_kb=usage.ru_maxrss,
            stdout=0,
            stderr=0,
            report=0,
            exit_code=ended,
            # A process that was ending by itself when its limit came was not killed.
            killed=KILLED.index(killed if ended == -signal.SIGKILL else None),
            confined=int(confined is not None),
        )

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
        order: Order,
        wall_s: float,
        other: int | None,
    ) -> str | None:
        """Wait for the child and kill it at a limit; None if it ended by itself.

        The limits are `cpu`, `wall`, and `peer_ended`: the jail at the other end of its channel,
        of which `other` is the descriptor to read from, ended and the child did not.
        """
        child_clock = (~child << 3) | 2  # clock_getcpuclockid(3): all threads of a process
        cpu_s, deadline = confined[0] + order.cpu_s, confined[1] + wall_s
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
                left, deadline = True, min(deadline, time.monotonic() + order.peer_ended_s)

    @staticmethod
    def _leave(child: int) -> NoReturn:
        """End with the child: the service is gone."""
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    def _become_answer(self, order: Order, descriptors: list[int]) -> NoReturn:
        """Confine this process, then become the program, or run the answer."""
        try:
            kind = self._kinds[order.kind]
            self._take_descriptors(order, descriptors, kind)
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:  # it died before it could be watched
                os._exit(1)
            confine.limit_resources(
                cpu_s=int(order.cpu_s) + 2,
                address_space=self._own_address_space + order.address_space,
                data=self._own_address_space + order.data if order.data else None,
                file_size=order.output,
                processes=self._processes,
                stack=order.stack,
            )
            confine.seal(kind.ruleset, kind.seccomp, kind.own_pid_at)
            os.write(CONFINED_FD, _CONFINED.pack(time.process_time(), time.monotonic()))
            os.closerange(CONFINED_FD, 1 << 16)
            os.close(kind.ruleset)
            if order.kind != SOURCE:
                os.close(STDLIB_FD)
                kind.execute(CODE_FD, order.arguments, order.environment)
        except BaseException:  # noqa: BLE001 - the edge of the child: its status tells
            _fail()
        _run_answer()

    @staticmethod
    def _take_descriptors(order: Order, descriptors: list[int], kind: kinds.Kind) -> None:
        """Put each where the answer expects it; close all others but the needed."""
        places = [0, 1, 2, REPORT_FD, CODE_FD, *CHANNEL_FDS[: order.lent]]
        for place, descriptor in zip(places, descriptors, strict=True):
            os.dup2(descriptor, place, inheritable=place != CODE_FD or kind.interpreter >= 0)
        if kind.interpreter >= 0:
            os.lseek(CODE_FD, 0, os.SEEK_SET)  # the process of an earlier test has read it
        needed = {kind.ruleset, kind.interpreter, STDLIB_FD, CONFINED_FD, *places[4:]} - {-1}
        start = REPORT_FD + 1
        for descriptor in sorted(needed):
            os.closerange(start, descriptor)
            start = descriptor + 1
        os.closerange(start, 1 << 16)


def _run_answer() -> NoReturn:
    """Read and run the answer in this confined process."""
    status = 1
    try:
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
        payload = marshal.loads(os.pread(CODE_FD, os.fstat(CODE_FD).st_size, 0))
        os.close(CODE_FD)
        report = answer.reporter(REPORT_FD)
        if "tests" in payload:  # on an answer at the channel's other end
            tester.run_tests(payload, report, CHANNEL_FDS)
            status = 0
        else:
            status = answer.run_answer(payload, report, CHANNEL_FDS)
    except BaseException:  # noqa: BLE001 - the edge of the child: its status tells
        _fail()
    os._exit(status)


def _fail() -> NoReturn:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def _copy(to: int, source: int, at: int, size: int) -> None:
    while size:
        copied = os.sendfile(to, source, at, size)
        if not copied:
            raise OSError(errno.EIO, "the file is too short")
        at, size = at + copied, size - copied


def _clear_low_descriptors(*descriptors: int) -> list[int]:
    """Move descriptors up and hold the numbers that children give a meaning."""
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, CONFINED_FD + 1) for one in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number in (REPORT_FD, *CHANNEL_FDS, CODE_FD, STDLIB_FD, CONFINED_FD):
        os.dup2(0, number, inheritable=False)
    return moved
