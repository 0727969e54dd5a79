"""An engine's process does not outlive a killed replica."""

import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import multiprocessing, os, signal
from services.rollout_server.engine.parent_death import die_with_parent

def child():
    die_with_parent()
    print(os.getpid(), flush=True)
    signal.pause()

multiprocessing.get_context("fork").Process(target=child).start()
signal.pause()
"""
DEADLINE_S = 300.0


def test_the_child_of_a_killed_process_dies_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _alive(child)
        parent.kill()
        # End of file: the last holder of the pipe, which is the child, is gone.
        assert parent.stdout.read() == ""
    deadline = time.monotonic() + DEADLINE_S
    while _alive(child):
        assert time.monotonic() < deadline


def _alive(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while it was read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
