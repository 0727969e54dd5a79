"""Facts about a machine; `checks` decides which of them are faults."""

from dataclasses import dataclass

from services.file_system import FileSystem


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The result of the sandbox's start-up test in the reward service.

    Attributes:
        tier: `A` with namespaces, `B` without, empty: none works.
        complaints: why a stronger one, or any, does not work.
        bubblewrap: the `bwrap` that can be used, with its version; empty: none.
    """

    tier: str
    complaints: tuple[str, ...]
    bubblewrap: str


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package whose version matters.

    Attributes:
        installed: its version, empty: it is not there.
        supported: the specifier that Millrace, or the engine, asks for; empty: any.
    """

    name: str
    installed: str
    supported: str


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as its driver describes it; memory in MiB."""

    name: str
    memory_mib: int
    used_mib: int
    driver: str


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs and what connects them.

    Attributes:
        devices: kernel device files of NVIDIA GPUs, such as `/dev/nvidia0`.
        seen: by `nvidia-smi`.
        problem: the error of `nvidia-smi`, else empty.
        links: how pairs of GPUs are connected, as in `nvidia-smi topo -m`: `NV18`, `PIX`,
            `SYS`, ...
        rdma: active ports of RDMA devices, such as `mlx5_0/1`.
        inactive_rdma: the other ports.
        interfaces: names of network interfaces that have an address.
        nccl: environment variables of NCCL.
        pin_problem: why CUDA's driver does not register host memory; empty: it does, or there is
            no GPU.
    """

    devices: tuple[str, ...]
    seen: tuple[Gpu, ...]
    problem: str
    links: tuple[str, ...]
    rdma: tuple[str, ...]
    inactive_rdma: tuple[str, ...]
    interfaces: tuple[str, ...]
    nccl: tuple[tuple[str, str], ...]
    pin_problem: str


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port that Millrace or Ray wants.

    Attributes:
        owner: name of the listening process, `another user's process` where it cannot be
            seen; empty: the port is free.
    """

    number: int
    purpose: str
    owner: str


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The kernel's clock.

    Attributes:
        synchronised: a time service disciplines it; None: the kernel does not say.
        error_s: the kernel's own bound on its error, seconds.
    """

    synchronised: bool | None
    error_s: float


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file system; sizes in bytes.

    Attributes:
        problem: why nothing can be written there; empty: it can.
    """

    path: str
    purpose: str
    size: int
    free: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Soft limits of this shell; None: unlimited.

    Attributes:
        most_open_files: the hard limit, to which each service raises its own.
    """

    open_files: int
    most_open_files: int
    processes: int | None
    locked_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Files of earlier clusters that no living process uses.

    Attributes:
        folders: of private clusters and Ray sessions.
        folder_bytes: their size.
        segments: of shared memory.
        segment_bytes: their size.
    """

    folders: tuple[str, ...]
    folder_bytes: int
    segments: tuple[str, ...]
    segment_bytes: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All facts about one machine.

    Attributes:
        cores: processors that this process may use.
        load: the host's load average of the last minute, scaled by the share of its processors
            that this process may use.
        memory_free: bytes that can be had without swapping, within a container's limit.
        compilers: path of each wanted compiler, empty where it is absent.
        languages: what has to be installed for answers in each language, empty: nothing.
        shared_memory: `/dev/shm`.
        runs: the file system of runs.
    """

    host: str
    python: str
    cores: int
    load: float
    memory_free: int
    packages: tuple[Package, ...]
    sandbox: Sandbox
    gpus: Gpus
    ports: tuple[Port, ...]
    clock: Clock
    disks: tuple[Disk, ...]
    shared_memory: Disk
    runs: FileSystem
    limits: Limits
    compilers: tuple[tuple[str, str], ...]
    languages: tuple[tuple[str, str], ...]
    leftovers: Leftovers


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of a Ray cluster.

    Attributes:
        address: of the node.
        machine: its facts; None: it did not answer.
        problem: why it did not answer.
        clock_ahead_s: its clock minus the asking machine's, seconds.
        clock_doubt_s: error of `clock_ahead_s`: half of the time that the call took.
    """

    address: str
    machine: Machine | None
    problem: str = ""
    clock_ahead_s: float = 0.0
    clock_doubt_s: float = 0.0
