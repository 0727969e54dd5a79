"""Who a process is, so that another one of its machine can see whether it is gone."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path


def this_process() -> dict[str, str]:
    """This process, as `is_gone` understands it in any process and on any machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    pid = str(os.getpid())
    return {
        "host": socket.gethostname(),
        "machine": f"{boot}/{os.readlink('/proc/self/ns/pid')}",
        "pid": pid,
        "started": _started(pid),
    }


def is_gone(process: Mapping[str, str]) -> bool:
    """Whether it can be seen here that a process is no more."""
    here = process.get("machine") == this_process()["machine"]
    return here and process["started"] != _started(process["pid"])


def _started(pid: str) -> str:
    """When a process of this machine began, clock ticks since boot; empty: it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else fields[18]
