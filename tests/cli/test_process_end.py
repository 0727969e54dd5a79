"""A process that has used a private cluster ends before destructors of C++ can crash it."""

import subprocess
import sys

import pytest

ABORTING = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # in the place of a destructor that crashes
print("all was done", end="")
"""
PATCHED = """
from millrace_tools.cluster.ray_patches import end_before_destructors
end_before_destructors()
"""


@pytest.mark.parametrize(("patch", "status"), [("", -6), (PATCHED, 3)])
def test_the_status_is_what_python_says_and_all_output_is_written(patch: str, status: int) -> None:
    script = ABORTING + patch + "sys.exit(3)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (status, "all was done")
