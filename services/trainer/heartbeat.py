"""The signs of life of a rank's process: what it does, and how long it has been quiet.

The torch thread writes, the event loop reads; no torch is imported. A rank that waits for a peer
inside a collective of Gloo uses no CPU time, so that CPU time is a sign of life on the CPU; a
thread that waits for a GPU may spin, so that on a GPU only finished work of the device is one.
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
_THREADS = ("torch", "pt_", "gloo")
_TASKS = Path("/proc/self/task")
_PENDING = 4096


class DeviceEvent(Protocol):
    """A point in the work of a device, such as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the device has passed it."""


def name_torch_thread() -> None:
    """Name the calling thread `torch`; threads that it makes inherit the name on Linux."""
    with contextlib.suppress(OSError):  # without it, marks are signs of life all the same
        (_TASKS / str(threading.get_native_id()) / "comm").write_text("torch")


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


class Heartbeat:
    """One for each process; see `HEARTBEAT`.

    Args:
        clock: monotonic seconds.
        cpu: CPU seconds of the threads that do the work.
        io: bytes that the process has read and written.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = cpu_seconds,
        io: Callable[[], int] = io_bytes,
    ) -> None:
        self._clock, self._cpu, self._io = clock, cpu, io
        self._host, self._compiling, self._offloads = True, False, False
        self._pending: deque[DeviceEvent] = deque(maxlen=_PENDING)
        self._now = ("starting", 0, 0)
        self._marks, self._marks_seen = 0, 0
        self._sign_at = self._sampled_at = clock()
        self._cpu_before, self._io_before = 0.0, 0

    def follow(self, device: str, *, compiles: bool = False, offloads: bool = False) -> None:
        """Say where the rank computes, `cpu` or `cuda`, and when the CPU has work of its own.

        Args:
            device: of the passes.
            compiles: until the first optimizer step, since torch compiles the model.
            offloads: in each optimizer step.
        """
        self._host, self._compiling, self._offloads = device == "cpu", compiles, offloads

    def enter(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Begin a phase, or part `done` of the `total` parts of one."""
        self._now = phase, done, total
        self._marks += 1
        self._compiling = self._compiling and phase != "optimizer"

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
        cpu, io = self._cpu(), self._io()
        worked = cpu - self._cpu_before > CPU_SHARE * passed
        moved = io - self._io_before > IO_BYTES_S * passed
        marked = self._marks > self._marks_seen
        self._cpu_before, self._io_before, self._marks_seen = cpu, io, self._marks
        phase_on_host = self._now[0] in ON_HOST
        steps_on_host = self._offloads and self._now[0] == "optimizer"
        computes_on_host = self._host or self._compiling or phase_on_host or steps_on_host
        return marked or (computes_on_host and worked) or (phase_on_host and moved)


HEARTBEAT = Heartbeat()
"""Of this process, which is one rank."""
