"""A child of a workspace's first process: confines itself, and becomes what was asked for."""

import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from services.reward_service.jailed import confine

REPORT_FD, CONFINED_FD, STDLIB_FD = 3, 59, 60
"""Where a child reports, or the kept interpreter receives its cells; where it says that it is
confined; the standard library, where the user may not enter the folders above it."""
_UNTOUCHED = 4 << 30
"""Address space beyond the memory that a process may write to: runtimes reserve much of it."""
_NOT_FOUND, _NOT_RUN = 127, 126
"""Exit statuses of a shell for a program that is not there or cannot be run."""

Order = dict[str, Any]


class Child:
    """How the children of a workspace are confined.

    Args:
        settings: of the first process.
        ruleset: of Landlock.
    """

    def __init__(self, settings: dict[str, Any], ruleset: int) -> None:
        self._settings, self._ruleset = settings, ruleset
        program, self._own_pid_at = settings["filter"]
        self._program = bytes.fromhex(program)

    def become(
        self, order: Order, descriptors: list[int], confined: int, run: Callable[[], None]
    ) -> NoReturn:
        """Confine this process, say so on the pipe `confined`, and run.

        Its own Landlock domain lies in that of the first process, so that from Linux 6.12 on it
        can signal neither that nor the other children.
        """
        status = 1
        try:
            os.dup2(confined, CONFINED_FD, inheritable=False)
            for place, descriptor in enumerate(descriptors[: REPORT_FD + 1]):
                os.dup2(descriptor, place)
            start = len(descriptors)
            for kept in sorted((CONFINED_FD, STDLIB_FD, self._ruleset)):
                os.closerange(start, kept)
                start = kept + 1
            os.closerange(start, 1 << 16)
            os.setsid()
            for number in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores both
                signal.signal(number, signal.SIG_DFL)
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
            self._limit(order)
            confine.seal(self._ruleset, self._program, self._own_pid_at)
            os.close(self._ruleset)
            os.write(CONFINED_FD, b"C")
            os.close(CONFINED_FD)
            run()
            status = 0
        except BaseException as error:  # noqa: BLE001 - the edge of the child: its status tells
            with contextlib.suppress(OSError):
                os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        os._exit(status)

    def run_interpreter(self) -> None:
        """Serve cells, in this interpreter or in another one."""
        python = self._settings["python"]
        os.environ.clear()
        os.environ.update(self._settings["environment"])
        if python["path"] is not None:
            os.execv(python["path"], [python["path"], "-B", "-X", "utf8", "-c", python["source"]])
        gc.unfreeze()
        for name in [name for name in sys.modules if name.startswith("services")]:
            del sys.modules[name]
        exec(compile(python["source"], "kept_interpreter.py", "exec"), {"__name__": "__main__"})

    def _limit(self, order: Order) -> None:
        limits = {
            resource.RLIMIT_DATA: order["memory"],
            resource.RLIMIT_AS: order["memory"] + _UNTOUCHED,
            resource.RLIMIT_FSIZE: order["file_size"],
            resource.RLIMIT_NPROC: self._settings["processes"],
            resource.RLIMIT_NOFILE: self._settings["descriptors"],
        }
        if order["cpu_s"] is not None:
            limits[resource.RLIMIT_CPU] = int(order["cpu_s"]) + 2
        confine.set_limits(limits)


def run_program(order: Order) -> None:
    """Become the program of a call; ends the process if it cannot be run."""
    argv = order["argv"]
    try:
        os.chdir(order["cwd"])
        os.execvpe(argv[0], argv, order["environment"])
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        where = order["cwd"] if error.filename == order["cwd"] else argv[0]
        os.write(2, f"{where}: {os.strerror(error.errno or 0)}\n".encode(errors="replace"))
        os._exit(_NOT_FOUND if missing else _NOT_RUN)
