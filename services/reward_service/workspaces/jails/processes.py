"""The processes of a jail, seen from outside it: what they use, and which of them are left.

All of a jail are descendants of its first process, which inherits the orphans. Reads /proc of the
host; what it does not tell (`children` needs CONFIG_PROC_CHILDREN) is counted as nothing, and the
kernel's limits of each process remain.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_OF_A_PROCESS = 2
"""The kind of clock that clock_getcpuclockid(3) makes."""
_KILL_S, _LOOK_AGAIN_S = 10.0, 0.01
_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the processes of a jail use, its first process left out.

    Attributes:
        cpu_s: processor seconds of those that run and of those that ended.
        memory: bytes that they hold and no file backs; what forked processes share counts for each.
        processes: how many there are, threads included.
    """

    cpu_s: float = 0.0
    memory: int = 0
    processes: int = 0


def children(process: int) -> list[int]:
    """The children of a process; empty if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _read(f"/proc/{process}/task/{task}/children").split())
    return found


def descendants(process: int) -> list[int]:
    """All below a process."""
    found, waiting = [], children(process)
    while waiting:
        found.append(waiting.pop())
        waiting += children(found[-1])
    return found


def usage(agent: int) -> Usage:
    """What the jail of this first process uses."""
    cpu_s, memory, processes = _ended_cpu_s(agent), 0, 0
    for process in descendants(agent):
        with contextlib.suppress(OSError):
            cpu_s += _ended_cpu_s(process) + time.clock_gettime((~process << 3) | _OF_A_PROCESS)
        facts = _status(process)
        memory += facts.get("RssAnon", 0) + facts.get("RssShmem", 0)
        processes += facts.get("Threads", 0)
    return Usage(cpu_s=cpu_s, memory=memory * _KIB, processes=processes)


def proportional_memory(agent: int) -> int | None:
    """Bytes that the jail's processes hold, what they share counted once; None if not to be had."""
    total = 0
    for process in descendants(agent):
        try:
            text = _read(f"/proc/{process}/smaps_rollup")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return None
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                total += int(rest.split()[0])
    return total * _KIB


def kill_leftovers(agent: int, kept: set[int]) -> bool:
    """Kill all children of a jail's first process but some, with their descendants.

    They are stopped, so that none of them can make more meanwhile.

    Returns:
        Whether there were any.
    """
    doomed = [child for child in children(agent) if child not in kept]
    handles = []
    for process in [below for child in doomed for below in (child, *descendants(child))]:
        with contextlib.suppress(OSError):
            handles.append(os.pidfd_open(process))
            signal.pidfd_send_signal(handles[-1], signal.SIGKILL)
    deadline = time.monotonic() + _KILL_S
    for handle in handles:
        has_ended(handle, max(0.0, deadline - time.monotonic()))
        os.close(handle)
    return bool(doomed)


def kill_orphans(mark: str, user_id: int | None) -> int:
    """Kill what a jail without a process namespace left when its first process was killed.

    Args:
        mark: stands in the command line or the environment of its processes.
        user_id: that only they have; None where they share it with others.

    Returns:
        How many are left: those that no signal ended in time.
    """
    if user_id is not None:  # all at once, so that none can make another one meanwhile
        subprocess.run(
            ["/bin/sh", "-c", "kill -KILL -1"],
            user=user_id,
            group=user_id,
            extra_groups=[],
            env={},
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=_KILL_S,
            check=False,
        )
    deadline = time.monotonic() + _KILL_S
    while (found := _orphans(mark, user_id)) and time.monotonic() < deadline:
        for process in found:  # all of them before the first is waited for: they may fork
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(process)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
        time.sleep(_LOOK_AGAIN_S)
    return len(found)


def _orphans(mark: str, user_id: int | None) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if user_id is not None:
                facts = _status(int(name))
                is_one = facts.get("Uid") == user_id and facts.get("VmRSS", 0) > 0
            else:
                files = (Path("/proc", name, file) for file in ("cmdline", "environ"))
                is_one = any(mark.encode() in file.read_bytes() for file in files)
            if is_one:
                found.append(int(name))
    return found


def has_ended(handle: int, timeout_s: float = 0.0) -> bool:
    """Whether the process of a pidfd has ended, or ends within the time."""
    waiting = select.poll()  # not select(): a busy service has descriptors above 1023
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))


def _ended_cpu_s(process: int) -> float:
    """Processor seconds of the children that a process has waited for."""
    try:
        fields = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) * _TICK_S


def _status(process: int) -> dict[str, int]:
    """The numbers of /proc/PID/status."""
    try:
        lines = _read(f"/proc/{process}/status").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem", "Threads", "Uid", "VmRSS"):
            found[name] = int(value.split()[0])
    return found


def _read(path: str) -> str:
    """Not by `Path`, which interns each part of its text: a service that looks at every process of
    its calls ten times a second would make the interpreter's table of names anew again and again.

    Raises:
        OSError: the process is gone, or its file is closed to this one.
    """
    with open(path, errors="replace") as file:
        return file.read()
