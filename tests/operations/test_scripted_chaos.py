"""What random faults leave out, on one real cluster: spoilt pushes, a full disk, a wrong clock, the
ends of Serve's and Ray's own processes, and a campaign that is cut short.

The run writes to a small file system of its own, its orchestrator's clock is libfaketime's, and
of two routers neither keeps the sessions.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from millrace_tools.chaos import fault_process
from services.protocol.run.orchestrator import RunState
from tests.chaos.demo_cluster import DemoCluster, demo_cluster

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
MIB = 48
RUN_S = 600.0
UNDONE_S = 60.0
UNNOTICED = [
    {"at": 1, "fault": "corrupt", "target": "push"},
    {"at": 5, "fault": "drop", "target": "push"},
    {"at": 9, "fault": "skew", "target": "orchestrator", "by": 3600, "for": 6},
    {"at": 18, "fault": "skew", "target": "orchestrator", "by": -3600, "for": 6},
    {"at": 27, "fault": "fill", "target": "disk", "for": 10, "mib": MIB},
    {"at": 45, "fault": "kill", "target": "engine"},
    {"at": 60, "fault": "kill", "target": "controller"},
    {"at": 75, "fault": "freeze", "target": "raylet", "for": 8},
]
BREAKS_CONNECTIONS = [
    {"at": 1, "fault": "kill", "target": "proxy"},
    {"at": 30, "fault": "kill", "target": "sessions"},
    {"at": 60, "fault": "freeze", "target": "sessions", "for": 5},
    {"at": 75, "fault": "freeze", "target": "proxy", "for": 5},
]
ENDLESS = [
    {"at": 0, "fault": "freeze", "target": "rank", "for": 3600},
    {"at": 0, "fault": "slow", "target": "reward", "for": 3600},
    {"at": 0, "fault": "skew", "target": "orchestrator", "by": 3600, "for": 3600},
    {"at": 0, "fault": "fill", "target": "disk", "for": 3600, "mib": MIB},
]

pytestmark = [
    pytest.mark.timeout(2 * RUN_S),
    pytest.mark.skipif(not LIBRARY.exists(), reason="no libfaketime: apt-get install faketime"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def small_disk(folder: Path) -> Iterator[Path]:
    runs = folder / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MIB}m", "tmpfs", str(runs)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted, run as root: {mounted.stderr.strip()}")
    yield runs
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


@pytest.fixture(scope="module")
def clock(folder: Path) -> Path:
    """The orchestrator's offset."""
    offset = folder / "offset"
    offset.write_text("+0\n")
    return offset


@pytest.fixture(scope="module")
def demo(small_disk: Path, clock: Path, folder: Path) -> Iterator[DemoCluster]:
    skewable = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with demo_cluster(folder, {"orchestrator": skewable}, routers=2) as running:
        yield running


@pytest.fixture(scope="module")
def run_id(demo: DemoCluster) -> Iterator[str]:
    """A run that outlives all that is done to it."""
    run_id = demo.start_run(steps=100_000).run_id
    yield run_id
    status = demo.stop(run_id)
    assert status.state is RunState.STOPPED, status.detail
    assert status.ledger.failed == 0


def begun(
    demo: DemoCluster, run_id: str, faults: list[dict[str, Any]], folder: Path
) -> "subprocess.Popen[str]":
    script = folder / "faults.yaml"
    script.write_text(yaml.safe_dump({"faults": faults}))
    return demo.chaos(run_id, "--script", str(script), "--json", str(folder / "report.json"))


def played(
    demo: DemoCluster, run_id: str, faults: list[dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """The report of a script that cost nothing."""
    chaos = begun(demo, run_id, faults, folder)
    try:
        said, _ = chaos.communicate(timeout=RUN_S)
    finally:
        chaos.kill()
    print(said)
    assert chaos.returncode == 0, said
    drawn: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert drawn["lost"] == []
    assert [one["refused"] for one in drawn["recoveries"]] == [""] * len(faults)
    return drawn


def test_spoilt_pushes_wrong_clocks_a_full_disk_and_a_raylet_that_stands_still_lose_nothing(
    demo: DemoCluster, run_id: str, tmp_path: Path
) -> None:
    drawn = played(demo, run_id, UNNOTICED, tmp_path)
    assert drawn["totals"]["calls_retried"] == 0


def test_a_proxy_and_the_sessions_process_come_back_and_every_call_is_answered_in_the_end(
    demo: DemoCluster, run_id: str, tmp_path: Path
) -> None:
    drawn = played(demo, run_id, BREAKS_CONNECTIONS, tmp_path)
    assert all(one["answered_s"] is not None for one in drawn["recoveries"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_chaos_its_faults_are_undone(
    demo: DemoCluster, run_id: str, tmp_path: Path, clock: Path, number: signal.Signals
) -> None:
    chaos = begun(demo, run_id, ENDLESS, tmp_path)
    try:
        assert chaos.stdout is not None
        # A line more is not there to be read before the faults are over.
        for deed, line in zip(ENDLESS, chaos.stdout, strict=False):
            assert f"{deed['fault']} {deed['target']} for" in line, line
            assert "not done" not in line, line
        assert clock.read_text() == "+3600\n"
        assert filling(run_id, demo)
        assert stopped()
        chaos.send_signal(number)
        signalled = time.monotonic()
        said, _ = chaos.communicate(timeout=RUN_S)
        until(lambda: not fault_processes())
    finally:
        chaos.kill()
    print(f"{number.name}: over after {time.monotonic() - signalled:.1f} s\n{said}")
    assert stopped() == []
    assert clock.read_text() == "+0\n"
    assert not filling(run_id, demo)
    report = tmp_path / "report.json"
    if number is signal.SIGKILL:
        assert not report.exists()
        return
    assert chaos.returncode == 128 + signal.SIGINT
    drawn = json.loads(report.read_text())
    assert len(drawn["recoveries"]) == len(ENDLESS)
    assert not [loss for loss in drawn["lost"] if "undone" in loss]


def filling(run_id: str, demo: DemoCluster) -> bool:
    return (demo.folder / "runs" / run_id / "chaos-fill").exists()


def below(wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Processes of the cluster, which are below this one; not those that have ended."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            if wanted(one):
                found.append(one)
        except psutil.NoSuchProcess:
            continue
    return found


def fault_processes() -> list[psutil.Process]:
    return below(lambda one: fault_process.__name__ in one.cmdline())


def stopped() -> list[psutil.Process]:
    return below(lambda one: one.status() == psutil.STATUS_STOPPED)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNDONE_S
    while not true():
        assert time.monotonic() < deadline, fault_processes()
        time.sleep(0.1)
