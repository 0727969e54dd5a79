"""Free memory of this machine or container."""

from pathlib import Path

import psutil


def free_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be used without swapping, within the container's limit."""
    free: int = psutil.virtual_memory().available
    try:
        limit = int((cgroup / "memory.max").read_text())  # `max` where there is none
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    # Cached files that can be dropped count as free.
    return min(free, limit - used + int(stat.get("inactive_file", 0)))
