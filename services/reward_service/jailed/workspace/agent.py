"""The first process of a workspace's jail: starts its programs and its interpreter, and ends them.

It holds nothing of any session, and reads nothing that a program wrote: files are handled by
children that are confined like programs. One call runs at a time. Between calls nothing of the
workspace runs: what a program left is killed, the interpreter and what it started are stopped.

Signals to all processes, `kill(-1)`, miss none that forks meanwhile. They stay in the jail by its
process namespace, by its user id, or by Landlock's scope (Linux 6.12).
"""

import contextlib
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from services.reward_service.jailed import confine
from services.reward_service.jailed.workspace import archives, child, files, guard

_MAX_MESSAGE = 1 << 20
_TICK_S = 0.1
_INODE_BYTES = 1024
"""What a file counts beside its content: the kernel keeps about as much of it."""

Order = dict[str, Any]


def main(control: socket.socket) -> None:
    """Serve calls on `control` until its other end is closed."""
    message, (passing,), _, _ = socket.recv_fds(control, _MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
    settings = json.loads(message)
    try:
        if settings["proxy_port"] is not None:
            _pass_listening_socket(passing, settings["proxy_port"])
        os.close(passing)
        if settings["user_id"] is None and os.getpid() != 1:
            guard.watch()
        control = _clear_low_descriptors(control)
        agent = Agent(settings, control)
    except OSError as error:
        control.send(json.dumps({"failed": str(error)}).encode())
        return
    hello = {"landlock_abi": agent.landlock_abi, "disk": agent.disk()}
    control.send(json.dumps(hello).encode())
    while agent.serve_one():
        pass
    agent.end_all()


def _clear_low_descriptors(control: socket.socket) -> socket.socket:
    """Move the control socket up and hold the numbers that children give a meaning."""
    moved = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, child.STDLIB_FD + 1)
    control.close()
    for number in (child.REPORT_FD, child.CONFINED_FD):
        os.dup2(0, number, inheritable=False)
    return socket.socket(fileno=moved)


def _pass_listening_socket(passing: int, port: int) -> None:
    """Make the socket at which programs find the proxy, which the service runs outside the jail."""
    with (
        socket.create_server(("127.0.0.1", port), backlog=128) as listening,
        socket.socket(fileno=os.dup(passing)) as service,
    ):
        socket.send_fds(service, [b"L"], [listening.fileno()])


class Agent:
    """Confines itself as far as a parent can and then serves calls.

    Raises:
        OSError: a layer of the jail is missing.
    """

    def __init__(self, settings: dict[str, Any], control: socket.socket) -> None:
        self._control, self._settings = control, settings
        self._interpreter = 0
        self._cpu_s = 0.0
        self._disk_bytes = int(settings["disk_bytes"])
        # At import Python catches SIGINT; the first process of a namespace gets no signal from
        # inside that it does not catch.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.umask(0o022)
        paths, network = settings["paths"], settings["proxy_port"] is not None
        self.landlock_abi, self._ruleset = confine.create_ruleset(paths, network=network)
        self._child = child.Child(settings, self._ruleset)
        if settings["stdlib_by_fd"]:
            confine.import_by_descriptor(settings["stdlib"], child.STDLIB_FD)
        confine.drop_privileges(settings["user_id"])
        if os.getpid() != 1:
            # It must outlive the service for as long as it takes to end what it started, which it
            # does when the service's end of the control socket closes.
            confine.prctl(confine.PR_SET_PDEATHSIG, 0)
            confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
        os.chdir(settings["folder"])
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._make_temporary_folder()
        for name in settings["root_folders"]:
            os.makedirs(name, 0o755, exist_ok=True)
        confine.restrict_paths(self._ruleset)
        if os.getpid() != 1:
            guard.check_signals()
        gc.collect()
        gc.freeze()

    def serve_one(self) -> bool:
        """Carry out one order; false when the service has hung up."""
        flags = socket.MSG_CMSG_CLOEXEC
        message, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 16, flags)
        if not message:
            return False
        said = json.loads(message)
        if said["do"] == "end":  # the call that it meant has ended by itself
            return True
        with open(descriptors.pop(0), "rb") as file:
            order = {**json.load(file), "call": said["call"]}
        self._cpu_s = 0.0
        self._reap()
        self._make_temporary_folder()
        started = time.monotonic()
        try:
            reply = _CALLS[order["do"]](self, order, descriptors)
        except OSError as error:
            reply = {"failed": str(error), "errno": error.errno}
        finally:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._reap()
        reply |= {
            "call": order["call"],
            "wall_s": time.monotonic() - started,
            "cpu_s": self._cpu_s,
            "disk": self.disk(),
            "interpreter": bool(self._interpreter),
        }
        self._control.send(json.dumps(reply).encode())
        return True

    def exec(self, order: Order, descriptors: list[int]) -> dict[str, Any]:
        """Run a program to its end, and end what it leaves behind."""
        return self._run(order, descriptors, lambda: child.run_program(order))

    def files(self, order: Order, descriptors: list[int]) -> dict[str, Any]:
        """Handle files in a child that is confined like a program."""
        handlers = archives.HANDLERS
        handle = files.handle
        return self._run(order, descriptors, lambda: handle(order["files"], handlers))

    def python(self, order: Order, descriptors: list[int]) -> dict[str, Any]:
        """Let the kept interpreter run, a new one if asked, until the service has its report."""
        if order["start"]:
            self.end_all()
            self._interpreter = self._start(order, descriptors, self._child.run_interpreter)
        elif not self._interpreter:  # it was killed between two calls
            return {"killed": None, "exit_code": -signal.SIGKILL}
        else:
            guard.signal_all(signal.SIGCONT)
        killed = self._wait(self._interpreter, order)
        if killed == "freeze":
            guard.signal_all(signal.SIGSTOP)
            return {"killed": None}
        exit_code = self._end_child(self._interpreter)
        self.end_all()
        return {"killed": killed, "exit_code": exit_code}

    def reap(self, order: Order, descriptors: list[int]) -> dict[str, Any]:
        """Wait for what the service has killed, as is done after every call."""
        return {"killed": None, "exit_code": None}

    def end_all(self) -> None:
        """Kill every process of the jail but this one, and wait for them."""
        guard.signal_all(signal.SIGKILL)
        self._interpreter = 0
        with contextlib.suppress(ChildProcessError):
            while True:
                self._count(os.wait4(-1, 0)[2])

    def disk(self) -> list[int]:
        """Bytes of the workspace's files, and bytes that are free, where it has a file system."""
        if not self._settings["own_file_system"]:
            return [0, 0]
        facts = os.fstatvfs(self._folder)
        used = (facts.f_blocks - facts.f_bavail) * facts.f_frsize
        used += (facts.f_files - facts.f_ffree) * _INODE_BYTES
        return [used, facts.f_bavail * facts.f_frsize]

    def _make_temporary_folder(self) -> None:
        """Where `/tmp` leads to; a program may have removed it."""
        with contextlib.suppress(OSError):
            os.mkdir(".tmp", 0o700)

    def _run(
        self, order: Order, descriptors: list[int], become: Callable[[], None]
    ) -> dict[str, Any]:
        try:
            pid = self._start(order, descriptors, become)
        except BlockingIOError:  # there are as many processes as there may be
            return {"killed": "processes", "exit_code": None}
        killed = self._wait(pid, order)
        if not self._interpreter:
            exit_code = self._end_child(pid)
            self.end_all()
        else:
            # The service looks for what is left and kills it: all of it is stopped, and none of
            # it can be told from the interpreter's own from here.
            guard.signal_all(signal.SIGSTOP)
            exit_code = self._end_child(pid)
        # A process that was ending by itself when its limit came was not killed.
        return {"killed": killed if exit_code == -signal.SIGKILL else None, "exit_code": exit_code}

    def _start(self, order: Order, descriptors: list[int], become: Callable[[], None]) -> int:
        """Fork a child that confines itself and then becomes what the order says.

        Raises:
            OSError: no process could be made, or it could not be confined.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._child.become(order, descriptors, writer, become)
        os.close(writer)
        with open(reader, "rb") as confined:
            if not confined.read(1):
                _, status = os.waitpid(pid, 0)
                ended = os.waitstatus_to_exitcode(status)
                raise OSError(errno.ECHILD, f"a process could not be confined: {ended}")
        return pid

    def _wait(self, pid: int, order: Order) -> str | None:
        """Wait for a child's end, a limit or the service's word; None if it ended by itself.

        Otherwise `wall`, `disk`, or what the service says: `freeze` or `kill`.
        """
        deadline = time.monotonic() + order["wall_s"]
        disk_bytes = max(self._disk_bytes, self.disk()[0])
        handle = os.pidfd_open(pid)
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.register(self._control, select.POLLIN)
        try:
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return "wall"
                ready = {number for number, _ in waiting.poll(1000 * min(left_s, _TICK_S))}
                if self._control.fileno() in ready:
                    word = self._control.recv(_MAX_MESSAGE)
                    if not word:
                        self.end_all()
                        os._exit(0)
                    if json.loads(word).get("call") == order["call"]:
                        return str(json.loads(word)["how"])
                if handle in ready:
                    return None
                if self.disk()[0] > disk_bytes:
                    return "disk"
        finally:
            os.close(handle)

    def _end_child(self, pid: int) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        self._count(usage)
        return os.waitstatus_to_exitcode(status)

    def _reap(self) -> None:
        """Wait for the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                self._count(ended[2])
                if ended[0] == self._interpreter:
                    self._interpreter = 0

    def _count(self, usage: resource.struct_rusage) -> None:
        self._cpu_s += usage.ru_utime + usage.ru_stime


_CALLS: dict[str, Callable[[Agent, Order, list[int]], dict[str, Any]]] = {
    "exec": Agent.exec,
    "files": Agent.files,
    "python": Agent.python,
    "reap": Agent.reap,
}
