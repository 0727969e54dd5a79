"""A machine on which all is well."""

import pytest

from millrace_tools.doctor.facts import (
    Clock,
    Disk,
    Gpu,
    Gpus,
    Leftovers,
    Limits,
    Machine,
    Package,
    Port,
    Sandbox,
)
from services.file_system import FileSystem

GIB = 1 << 30


def no_gpus() -> Gpus:
    return Gpus(
        devices=(),
        seen=(),
        problem="",
        links=(),
        rdma=(),
        inactive_rdma=(),
        interfaces=("lo", "eth0"),
        nccl=(),
        pin_problem="",
    )


def two_gpus() -> Gpus:
    one = Gpu(name="NVIDIA H100", memory_mib=81559, used_mib=3, driver="570.1")
    return Gpus(
        devices=("/dev/nvidia0", "/dev/nvidia1"),
        seen=(one, one),
        problem="",
        links=("NV18",),
        rdma=("mlx5_0/1",),
        inactive_rdma=(),
        interfaces=("lo", "eth0"),
        nccl=(),
        pin_problem="",
    )


@pytest.fixture
def machine() -> Machine:
    return Machine(
        host="here",
        python="3.11.9",
        cores=8,
        load=3.0,
        memory_free=32 * GIB,
        packages=(
            Package(name="ray", installed="2.60.0", supported="==2.60.0"),
            Package(name="vllm", installed="0.32.0", supported="==0.32.0"),
            Package(name="torch", installed="2.13.0", supported="==2.13.0"),
        ),
        sandbox=Sandbox(tier="A", complaints=(), bubblewrap="bubblewrap 0.11.0"),
        gpus=no_gpus(),
        ports=(Port(number=8000, purpose="HTTP", owner=""),),
        clock=Clock(synchronised=True, error_s=0.01),
        disks=(Disk(path="/tmp", purpose="Ray's session", size=100 * GIB, free=50 * GIB),),
        shared_memory=Disk(path="/dev/shm", purpose="shared memory", size=8 * GIB, free=8 * GIB),
        runs=FileSystem(kind="ext4"),
        limits=Limits(open_files=65536, most_open_files=65536, processes=None, locked_bytes=None),
        compilers=(("g++", "/usr/bin/g++"),),
        languages=(("python", ""), ("rust", "")),
        leftovers=Leftovers(folders=(), folder_bytes=0, segments=(), segment_bytes=0),
    )
