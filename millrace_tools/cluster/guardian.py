"""Cleans up after a private cluster whose owner was killed before it could.

A script of the standard library, started with the cluster's folder in a session of its own,
where signals to the owner's group do not reach it. The end of its standard input is the end
of its owner.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

_PATIENCE_S = 10.0
_POLL_S = 0.1


def marked(folder: Path) -> list[int]:
    """Processes whose temporary folder is below `folder`: those of the cluster."""
    mark = f"TMPDIR={folder}/".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended, or belongs to another user
        if any(variable.startswith(mark) for variable in variables):
            found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def clean_up(folder: Path) -> None:
    """Kill what is left of the cluster and remove its folder."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := marked(folder)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended meanwhile
        time.sleep(_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Wait for the owner's end; does nothing if it has cleaned up itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    if folder.exists():
        clean_up(folder)


if __name__ == "__main__":
    main()
