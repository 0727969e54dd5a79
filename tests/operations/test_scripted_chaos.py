"""What random faults leave out, on a real cluster: spoilt pushes, a full disk, a wrong clock.

The run writes to a small file system of its own, and its orchestrator's clock is libfaketime's.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from services.protocol.orchestrator import RunState
from tests.chaos.demo_cluster import DemoCluster, demo_cluster

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
MIB = 48
RUN_S = 600.0
SCRIPT = {
    "faults": [
        {"at": 1, "fault": "corrupt", "target": "push"},
        {"at": 5, "fault": "drop", "target": "push"},
        {"at": 9, "fault": "skew", "target": "orchestrator", "by": 3600, "for": 6},
        {"at": 18, "fault": "skew", "target": "orchestrator", "by": -3600, "for": 6},
        {"at": 27, "fault": "fill", "target": "disk", "for": 10, "mib": MIB},
        {"at": 45, "fault": "kill", "target": "engine"},
        {"at": 60, "fault": "kill", "target": "controller"},
    ]
}

pytestmark = [
    pytest.mark.timeout(2 * RUN_S),
    pytest.mark.skipif(not LIBRARY.exists(), reason="no libfaketime: apt-get install faketime"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    runs = tmp_path / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MIB}m", "tmpfs", str(runs)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted, run as root: {mounted.stderr.strip()}")
    yield runs
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


@pytest.fixture
def demo(small_disk: Path, tmp_path: Path) -> Iterator[DemoCluster]:
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    skewable = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with demo_cluster(tmp_path, {"orchestrator": skewable}) as running:
        yield running


def test_spoilt_pushes_wrong_clocks_and_a_full_disk_lose_nothing(
    demo: DemoCluster, tmp_path: Path
) -> None:
    script, report = tmp_path / "faults.yaml", tmp_path / "report.json"
    script.write_text(yaml.safe_dump(SCRIPT))
    run_id = demo.start_run(steps=100_000).run_id
    chaos = demo.chaos(run_id, "--script", str(script), "--json", str(report))
    try:
        said, _ = chaos.communicate(timeout=RUN_S)
    finally:
        chaos.kill()
    print(said)
    assert chaos.returncode == 0, said
    drawn = json.loads(report.read_text())
    assert drawn["lost"] == []
    assert [one["refused"] for one in drawn["recoveries"]] == [""] * len(SCRIPT["faults"])
    assert drawn["totals"]["calls_asked_again"] == 0
    status = demo.stop(run_id)
    assert status.state is RunState.STOPPED, status.detail
    assert status.ledger.failed == 0
