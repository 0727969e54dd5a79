"""The signs of life of a rank's process: what it does, and how long it has been quiet.

The torch thread writes, the event loop reads; no torch is imported. A rank that waits for a peer
inside a collective of Gloo uses no CPU time, so that CPU time is a sign of life on the CPU; a
thread that waits for a GPU may spin, so that on a GPU only finished work of the device is one,
but where the rank is known to work on the CPU.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from services.protocol.trainer import RankProgress

CPU_SHARE = 0.05
"""Of one core, used by the torch thread and the threads that it made, is work; waiting is 0."""
IO_BYTES_S = 128 << 10
"""Read or written by the process in a second is work; reports of progress are 100 times less."""
ON_HOST = frozenset({"starting", "loading", "saving"})
"""Phases in which a rank works on the CPU whatever its device is."""
WRITEBACK_BYTES_S = 4 << 20
"""Brought to disk by the node in a second is work of a rank that saves: its `fsync` shows nothing
else. Other programs' logs are less."""
_THREADS = ("torch", "pt_", "gloo")
_TASKS = Path("/proc/self/task")
_PENDING = 4096


class DeviceEvent(Protocol):
    """A point in the work of a device, such as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the device has passed it."""


def name_torch_thread() -> None:
    """Name the calling thread `torch`; threads that it makes inherit the name on Linux."""
    name_thread("torch")


def name_thread(name: str) -> None:
    """Name the calling thread for the kernel."""
    with contextlib.suppress(OSError):  # without it, marks are signs of life all the same
        (_TASKS / str(threading.get_native_id()) / "comm").write_text(name)


def cpu_seconds() -> float:
    """CPU time that torch's threads have used, those that ended left out."""
    used = 0
    for task in _TASKS.glob("*/stat"):
        try:
            head, _, rest = task.read_text().rpartition(")")
        except OSError:
            continue  # it ended
        if head.partition("(")[2].startswith(_THREADS):
            fields = rest.split()
            used += int(fields[11]) + int(fields[12])  # utime and stime of proc(5)
    return used / os.sysconf("SC_CLK_TCK")


def io_bytes() -> int:
    """Bytes that the process has read and written, page faults of mapped files included."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    counts = {name: int(value) for name, value in (line.split(":") for line in lines)}
    return counts["rchar"] + counts["wchar"] + counts["read_bytes"]


def writeback_bytes() -> int:
    """Bytes that the node has brought from memory to its disks and network file systems."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    pages = (int(line.split()[1]) for line in lines if line.startswith("nr_written "))
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


class Heartbeat:
    """One for each process; see `HEARTBEAT`.

    Args:
        clock: monotonic seconds.
        cpu: CPU seconds of the threads that do the work.
        io: bytes that the process has read and written.
        writeback: bytes that the node has brought to disk.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = cpu_seconds,
        io: Callable[[], int] = io_bytes,
        writeback: Callable[[], int] = writeback_bytes,
    ) -> None:
        self._clock, self._cpu, self._io, self._writeback = clock, cpu, io, writeback
        self._host, self._compiling, self._steps_on_host = True, False, False
        self._pending: deque[DeviceEvent] = deque(maxlen=_PENDING)
        self._now = ("starting", 0, 0)
        self._told: Callable[[str, int], None] | None = None
        self._marks, self._marks_seen = 0, 0
        self._sign_at = self._sampled_at = clock()
        self._cpu_before, self._io_before, self._writeback_before = 0.0, 0, 0

    def follow(self, device: str, *, steps_on_host: bool = False) -> None:
        """Say where the rank computes, `cpu` or `cuda`.

        Args:
            device: of the passes.
            steps_on_host: optimizer steps are work of the CPU, and their collectives are Gloo's.
        """
        self._host, self._steps_on_host = device == "cpu", steps_on_host

    def compiling(self, begins: bool) -> None:
        """Torch begins or ends to compile, which is work of the CPU."""
        self._compiling = begins
        self._marks += 1

    def enter(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Begin a phase, or part `done` of the `total` parts of one."""
        self._now = phase, done, total
        self._marks += 1
        if self._told is not None:
            self._told(phase, total)

    def when_entered(self, tell: Callable[[str, int], None] | None) -> None:
        """Tell of every phase that begins and of each of its parts, with their number, 0 for a
        phase without parts; None: no longer."""
        self._told = tell

    def loading(self, done_bytes: int, total_bytes: int) -> None:
        """Bytes of the model that were loaded; a callback of loaders.

        Until all are, the rank waits for no other, so that it hangs when it is quiet.
        """
        self.enter("loading", done_bytes, total_bytes)

    def mark(self, event: DeviceEvent | None = None) -> None:
        """A part of the work is done; with `event`, when the device has passed it."""
        if event is None:
            self._marks += 1
        else:
            self._pending.append(event)

    def report(self) -> RankProgress:
        """What the rank does, and how long it has been quiet until now."""
        now = self._clock()
        if self._alive(now):
            self._sign_at = now
        phase, done, total = self._now
        return RankProgress(
            phase=phase, done=done, total=total, marks=self._marks, quiet_s=now - self._sign_at
        )

    def _alive(self, now: float) -> bool:
        """Whether there was a sign of life since the last report."""
        while self._pending and self._pending[0].query():
            self._pending.popleft()
            self._marks += 1
        passed, self._sampled_at = now - self._sampled_at, now
        cpu, io, writeback = self._cpu(), self._io(), self._writeback()
        worked = cpu - self._cpu_before > CPU_SHARE * passed
        moved = io - self._io_before > IO_BYTES_S * passed
        flushed = writeback - self._writeback_before > WRITEBACK_BYTES_S * passed
        marked = self._marks > self._marks_seen
        self._cpu_before, self._io_before, self._marks_seen = cpu, io, self._marks
        self._writeback_before = writeback
        phase = self._now[0]
        steps_on_host = self._steps_on_host and phase == "optimizer"
        computes_on_host = self._host or self._compiling or phase in ON_HOST or steps_on_host
        moved = (phase in ON_HOST and moved) or (phase == "saving" and flushed)
        return marked or (computes_on_host and worked) or moved


HEARTBEAT = Heartbeat()
"""Of this process, which is one rank."""
