"""A fault ends when it must: after its time, or with whoever asked for it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace_tools.chaos import fault_process
from millrace_tools.chaos.faults import cut
from millrace_tools.chaos.faults.signals import start_time

LONG_S = 600.0


@pytest.fixture
def target() -> Iterator[psutil.Process]:
    """A process with one below it, which runs: else its parent still waits in `vfork`.

    The kernel stops no process that waits there.
    """
    below = "print(flush=True); input()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}])"
    asked = [sys.executable, "-c", child]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        process = psutil.Process(parent.pid)
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"\n"
        try:
            yield process
        finally:
            for one in [*process.children(), process]:
                one.resume()
            parent.kill()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes(*processes: psutil.Process) -> list[tuple[int, int]]:
    return [(one.pid, start_time(one.pid)) for one in processes]


def play(**order: Any) -> tuple["subprocess.Popen[str]", str]:
    """Begin an order; what the fault_process answers, and the life of its owner."""
    begun = subprocess.Popen(
        [sys.executable, "-m", fault_process.__name__, json.dumps({"share": 0.1} | order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert begun.wait(300) == 0
    assert begun.stdout is not None
    return begun, begun.stdout.readline().strip()


def stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_a_frozen_family_goes_on_after_its_time(target: psutil.Process) -> None:
    family = [target, *target.children()]
    begun, answer = play(fault="freeze", seconds=0.3, processes=processes(*family))
    assert answer == fault_process.DONE
    until(lambda: not any(map(stopped, family)))
    begun.communicate()


def test_what_is_frozen_goes_on_when_its_owner_ends(target: psutil.Process) -> None:
    family = [target, *target.children()]
    begun, answer = play(fault="freeze", seconds=LONG_S, processes=processes(*family))
    assert answer == fault_process.DONE
    until(lambda: all(map(stopped, family)))
    begun.communicate()  # closes its end, as the end of its process would
    until(lambda: not any(map(stopped, family)))


def test_a_slowed_process_stands_still_most_of_the_time_and_goes_on_at_the_end(
    target: psutil.Process,
) -> None:
    begun, _ = play(fault="slow", seconds=LONG_S, share=0.5, processes=processes(target))
    until(lambda: stopped(target))
    until(lambda: not stopped(target))
    until(lambda: stopped(target))
    begun.communicate()
    until(lambda: not stopped(target))


def test_a_kill_hits_the_process_alone(target: psutil.Process) -> None:
    (below,) = target.children()
    begun, answer = play(fault="kill", seconds=None, processes=processes(target, below))
    assert answer == fault_process.DONE
    until(lambda: not target.is_running() or target.status() == psutil.STATUS_ZOMBIE)
    assert below.is_running()
    below.kill()
    begun.communicate()


def test_another_process_with_the_same_number_is_not_hit(target: psutil.Process) -> None:
    ((pid, since),) = processes(target)
    begun, answer = play(fault="kill", seconds=None, processes=[(pid, since - 1)])
    assert "it has ended already" in answer
    assert target.is_running()
    begun.communicate()


def test_a_disk_is_filled_to_the_last_byte_and_given_back(tmp_path: Path) -> None:
    if (
        os.getuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path]).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    try:
        begun, answer = play(fault="fill", seconds=LONG_S, folder=str(tmp_path), mib=8)
        assert answer == fault_process.DONE
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "more").write_bytes(b"x" * 4096)
        begun.communicate()
        until(lambda: not (tmp_path / "chaos-fill").exists())
        (tmp_path / "more").write_bytes(b"x" * 4096)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_disk_with_more_room_than_may_be_filled_is_left_alone(tmp_path: Path) -> None:
    begun, answer = play(fault="fill", seconds=LONG_S, folder=str(tmp_path), mib=1)
    assert "small file system" in answer
    assert list(tmp_path.iterdir()) == []
    begun.communicate()


def test_the_clock_of_a_process_under_libfaketime_goes_wrong_and_right_again(
    tmp_path: Path,
) -> None:
    library = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
    if not library.exists():
        pytest.skip("needs libfaketime: apt-get install faketime")
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    variables = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    tell = "import time\nwhile input(): print(time.time(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", tell],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as clock:

        def ahead() -> float:
            assert clock.stdin is not None
            assert clock.stdout is not None
            print("?", file=clock.stdin, flush=True)
            return float(clock.stdout.readline()) - time.time()

        assert abs(ahead()) < 60
        order = {"fault": "skew", "seconds": LONG_S, "by": 3600.0}
        begun, answer = play(**order, processes=processes(psutil.Process(clock.pid)))
        assert answer == fault_process.DONE
        assert abs(ahead() - 3600) < 60
        refused, answer = play(**order, processes=processes(psutil.Process(clock.pid)))
        assert "its clock is wrong already" in answer
        refused.communicate()
        begun.communicate()
        until(lambda: abs(ahead()) < 60)
        clock.kill()


def test_a_process_without_libfaketime_keeps_its_clock(target: psutil.Process) -> None:
    begun, answer = play(fault="skew", seconds=LONG_S, by=60.0, processes=processes(target))
    assert "without libfaketime" in answer
    begun.communicate()


def test_a_node_with_an_ipv6_address_is_not_cut_off_by_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = tmp_path / "if_inet6"
    addresses.write_text(f"{'0' * 31}1 01 80 10 80 lo\nfd{'0' * 30} 02 40 00 80 eth0\n")
    monkeypatch.setattr(cut, "_IPV6_ADDRESSES", addresses)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="there is no ip6tables"):
        cut.Cut({}).begin()


def test_a_node_is_cut_off_and_healed() -> None:
    """In a network namespace of its own with an IPv6 address, so that no real one is touched."""
    if os.getuid() or not shutil.which("iptables") or not shutil.which("unshare"):
        pytest.skip("needs root, and iptables: apt-get install iptables")
    order = json.dumps({"fault": "cut", "seconds": LONG_S, "processes": []})
    rules = "$({ iptables -S; ip6tables -S; } | grep -c millrace-chaos)"
    watch = (
        "set -e; ip link add v0 type veth peer name v1; ip link set v0 up;"
        " ip address add fd00::1/64 dev v0;"
        f" {sys.executable} -m {fault_process.__name__} '{order}';"
        f" until [ {rules} = 4 ]; do :; done; echo cut; until [ {rules} = 0 ]; do :; done"
    )
    with subprocess.Popen(
        ["unshare", "--net", "bash", "-c", watch],
        stdin=subprocess.PIPE,  # while it is open the fault_process's owner processes
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        assert node.stdout.readline().strip() == fault_process.DONE
        assert node.stdout.readline().strip() == "cut"
        node.stdin.close()
        assert node.wait(300) == 0
