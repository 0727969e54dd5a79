"""Lets orphans that were handed to this process go when they have ended."""

import contextlib
import os
import threading

from millrace_tools.cluster.leftovers import Process, processes

_LOOK_S = 5.0


class OrphanReaper:
    """Reaps adopted orphans, and only those, in a thread of its own.

    A process that `adopt_orphans` made the parent of orphans keeps each as a zombie until it asks
    how it ended. To ask for whoever has ended (`waitpid(-1)`) would take the answer from those who
    wait for a child of their own: subprocess, asyncio, Ray. So only what was once seen as the child
    of another process is asked for: nobody here started it. An orphan that was born and left
    between two looks is not known for one, and stays until the end.
    """

    def __init__(self) -> None:
        self._of_others: set[tuple[int, int]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphan-reaper", daemon=True)

    def start(self) -> None:
        """Look again and again, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()

    def look(self) -> list[int]:
        """Reap the adopted orphans that have ended; their process ids."""
        here, there = os.getpid(), list(processes())
        of_others = {(one.pid, one.began) for one in there if one.parent != here}
        adopted = [one for one in there if one.parent == here and self._knows(one)]
        kept = {(one.pid, one.began) for one in adopted if not one.is_zombie}
        self._of_others = of_others | kept
        ended = [one.pid for one in adopted if one.is_zombie]
        for pid in ended:
            with contextlib.suppress(ChildProcessError):  # somebody who reaps all was quicker
                os.waitpid(pid, os.WNOHANG)
        return ended

    def _knows(self, process: Process) -> bool:
        return (process.pid, process.began) in self._of_others
