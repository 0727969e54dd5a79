"""Nothing that a process started outlives it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millrace_tools.cluster.leftovers import (
    adopt_orphans,
    descendants,
    remove_segments_since,
    shared_memory_segments,
)
from millrace_tools.cluster.private_cluster import PrivateCluster

# Starts a child that starts a grandchild and dies at once; both ignore polite signals.
_ORPHANING = """
import os, subprocess, sys
from millrace_tools.cluster.leftovers import adopt_orphans, descendants, end_descendants
adopt_orphans()
sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
subprocess.run([sys.executable, "-c", child, sleep], check=True)
(orphan,) = descendants(os.getpid())
killed = end_descendants(grace_s=0.1)
print(orphan, killed == [orphan], descendants(os.getpid()))
"""


def test_an_orphaned_grandchild_is_found_and_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ORPHANING], capture_output=True, text=True, timeout=300, check=True
    )
    orphan, killed, left = done.stdout.split(maxsplit=2)
    assert (killed, left.strip()) == ("True", "[]")
    assert not Path(f"/proc/{orphan}").exists()


# A grandchild waits to be an orphan; a child of its own ends unasked. Then both have ended. The one
# between them ends without Python's tidying, which would reap a grandchild that was quicker.
_REAPING = """
import os, subprocess, sys
from millrace_tools.cluster.leftovers import adopt_orphans
from millrace_tools.cluster.orphan_reaper import OrphanReaper
adopt_orphans()
reaper = OrphanReaper()
waiting = "import sys; sys.stdin.read()"
child = f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {waiting!r}]); "
child += "print(p.pid, flush=True); sys.stdin.readline(); os._exit(0)"
middle = subprocess.Popen(
    [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
orphan = int(middle.stdout.readline())
own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
ended = os.WEXITED | os.WNOWAIT  # and not asked how
os.waitid(os.P_PID, own.pid, ended)
first = reaper.look()
middle.stdin.close()
assert middle.wait(300) == 0
os.waitid(os.P_PID, orphan, ended)
print(first == [], reaper.look() == [orphan], own.wait(300))
try:
    os.waitid(os.P_ALL, 0, ended | os.WNOHANG)
except ChildProcessError:
    print("none is left")
"""


def test_orphans_that_have_ended_are_let_go_and_own_children_keep_their_status() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REAPING], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["True True 7", "none is left"], done.stderr


def test_a_process_without_children_has_no_descendants() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        assert descendants(child.pid) == []
        child.communicate()


def test_a_forgotten_segment_is_removed_and_one_in_use_is_not() -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    before = shared_memory_segments()
    name = f"millrace-test-{os.getpid()}"
    forgotten, used = Path(f"/dev/shm/{name}-a"), Path(f"/dev/shm/{name}-b")
    hold = f"import mmap; f = open({str(used)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); "
    hold += "print(1, flush=True); input()"
    try:
        forgotten.write_bytes(b"x" * 4096)
        used.write_bytes(b"x" * 4096)
        with subprocess.Popen(
            [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            others = {path for path in shared_memory_segments() if name not in path.name}
            assert remove_segments_since(before | others) & {forgotten, used} == {forgotten}
            assert used.exists()
            holder.communicate(b"\n")
    finally:
        forgotten.unlink(missing_ok=True)
        used.unlink(missing_ok=True)


def test_a_semaphore_in_use_is_not_removed() -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    before = shared_memory_segments()
    # A started process opens it by name, so it must keep its name until then.
    hold = "import multiprocessing; lock = multiprocessing.get_context('spawn').Lock(); "
    hold += "print(lock._semlock.name, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        semaphore = Path(f"/dev/shm/sem.{holder.stdout.readline().strip().lstrip('/')}")
        others = shared_memory_segments() - {semaphore}
        assert remove_segments_since(before | others) == set()
        assert semaphore.exists()
        holder.communicate("\n")


def test_a_cluster_gives_temporary_files_a_place_and_takes_it_back() -> None:
    before, own = dict(os.environ), tempfile.gettempdir()
    for _ in range(2):
        with PrivateCluster(num_cpus=1) as cluster:
            assert Path(os.environ["TMPDIR"]).is_relative_to(cluster.folder)
            with tempfile.TemporaryDirectory() as inside:
                assert Path(inside).parent == Path(own), "this process outlives the cluster"
        assert dict(os.environ) == before


@pytest.mark.parametrize("before", [False, True])
def test_after_a_cluster_orphans_go_where_they_went_before_it(before: bool) -> None:
    earlier = adopt_orphans(before)
    try:
        with PrivateCluster(num_cpus=1):
            assert adopt_orphans()
        assert adopt_orphans(before) == before
    finally:
        adopt_orphans(earlier)
