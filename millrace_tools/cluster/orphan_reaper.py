"""Reaps orphans that were handed to this process."""

import contextlib
import os
import threading

import psutil

from millrace_tools.cluster.leftovers import is_over

_LOOK_S = 5.0


class OrphanReaper:
    """Reaps adopted orphans, and only those, in a thread of its own.

    A process that `adopt_orphans` made the parent of orphans keeps each as a zombie until it
    reaps it. To reap every child (`waitpid(-1)`) would take the exit status from subprocess,
    asyncio or Ray, which wait for children of their own. So only a process is reaped that was once
    seen as the child of another process. An orphan that was born and ended between two looks is
    not recognised, and stays until the end.
    """

    def __init__(self) -> None:
        self._of_others: set[psutil.Process] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphan-reaper", daemon=True)

    def start(self) -> None:
        """Look every few seconds, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()

    def look(self) -> list[int]:
        """Reap the adopted orphans that have ended; returns their process ids."""
        parents, here = _parents(), os.getpid()
        adopted = [one for one in self._of_others if parents.get(one) == here]
        ended = [process for process in adopted if is_over(process)]
        others = {process for process, parent in parents.items() if parent != here}
        self._of_others = (others | set(adopted)) - set(ended)
        for process in ended:
            with contextlib.suppress(ChildProcessError):  # it was reaped with all others
                os.waitpid(process.pid, os.WNOHANG)
        return [process.pid for process in ended]


def _parents() -> dict[psutil.Process, int]:
    parents = {}
    for pid in psutil.pids():  # `process_iter` would not notice a pid that is used again
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            parents[process] = process.ppid()
    return parents
