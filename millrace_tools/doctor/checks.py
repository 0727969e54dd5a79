"""One function a check: from facts about a machine to a finding."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from packaging.specifiers import SpecifierSet

from millrace_tools.doctor.facts import Disk, Machine
from services.ledger.ledger_file import network_terms
from services.open_files import most_connections
from services.reward_service.isolation.bubblewrap import PACKAGE

GIB = 1 << 30
_PYTHONS = SpecifierSet(">=3.11,<3.13")
_BUSY = 4  # load of a core
_MEMORY_GIB = 4.0  # what the demo asks for
_FREE_GIB = 2.0
_RAY_STOPS_AT = 0.95  # Ray makes no more objects on a disk that is fuller
_SHM_GIB = 1.0
_OPEN_FILES = 4096
_ASKED_FILES = 65536
_PROCESSES = 4096
_CLOCK_ERROR_S = 1.0
_GPU_BUSY = 0.1  # share of its memory
_LEFT_BYTES = 64 << 20
_OURS = ("raylet", "gcs_server", "ray", "haproxy")


class Grade(StrEnum):
    """The severity: a fault keeps something from working, a note costs speed or comfort."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        found: the fact.
        fix: how to change it; empty where nothing is to be done.
    """

    grade: Grade
    found: str
    fix: str = ""


good, note, fault = (partial(Finding, grade) for grade in Grade)


def python(machine: Machine) -> Finding:
    """The interpreter."""
    found = f"Python {machine.python}"
    fix = "Use Python 3.11 or 3.12: `make PYTHON=/path/to/python3.11`."
    return good(found) if machine.python in _PYTHONS else fault(found, fix)


def packages(machine: Machine) -> Finding:
    """Ray, vLLM and torch are pinned together."""
    wrong, right = [], []
    for package in machine.packages:
        wanted = f"{package.name}{package.supported}"
        if not package.installed:
            wrong.append(f"{package.name} is not installed")
        elif SpecifierSet(package.supported).contains(package.installed, prereleases=True):
            right.append(f"{package.name} {package.installed}")
        else:
            wrong.append(f"{package.name} {package.installed}, not {wanted}")
    if wrong:
        wanted = " ".join(f"'{one.name}{one.supported}'" for one in machine.packages)
        return fault("; ".join(wrong), f"`pip install {wanted}`, on every node alike.")
    return good(", ".join(right))


def sandbox(machine: Machine) -> Finding:
    """Whether answers can be graded by running them."""
    found = machine.sandbox
    why = "; ".join(found.complaints)
    if not found.tier:
        fix = (
            "Untrusted code needs Linux 5.13 or newer with Landlock (`lsm=landlock,...` on the "
            "kernel's command line) and seccomp; gVisor has no Landlock."
        )
        return fault(f"no sandbox holds here: {why}", fix)
    if found.tier == "A":
        return good(f"tier A: namespaces, Landlock, seccomp; {found.bubblewrap}")
    if not found.bubblewrap:
        fix = f"For tier A: `pip install {PACKAGE}`, or `apt-get install bubblewrap`."
        return note(f"tier B: {why}", fix)
    fix = (
        "For tier A allow user namespaces: `sysctl user.max_user_namespaces=15000` and, on "
        "Ubuntu, `sysctl kernel.apparmor_restrict_unprivileged_userns=0`."
    )
    return note(f"tier B, {found.bubblewrap}: {why}", fix)


def compilers(machine: Machine) -> Finding:
    """For answers in C++, and for vLLM's and torch's compiled kernels."""
    missing = [name for name, path in machine.compilers if not path]
    if missing:
        fix = "`apt-get install g++`, if C++ answers are graded or kernels are compiled."
        return note(f"no {', '.join(missing)}", fix)
    return good(", ".join(path for _, path in machine.compilers))


def languages(machine: Machine) -> Finding:
    """In which answers can be graded."""
    here = [name for name, missing in machine.languages if not missing]
    missing = [missing for _, missing in machine.languages if missing]
    if missing:
        fix = f"If answers in them are graded: {' '.join(missing)}"
        absent = (name for name, missing in machine.languages if missing)
        return note(f"{', '.join(here)}; not {', '.join(absent)}", fix)
    return good(", ".join(here))


def gpus(machine: Machine) -> Finding:
    """Devices, their driver, and whether another process uses them."""
    found = machine.gpus
    if not found.devices and not found.seen:
        return good("none: engines and trainer run on the CPU")
    if found.problem or len(found.seen) < len(found.devices):
        seen = f"{len(found.devices)} device files, {len(found.seen)} GPUs seen"
        fix = "Reinstall the driver, or start the container with all GPUs; see `dmesg`."
        return fault(f"{seen}: {found.problem or 'one has dropped out'}", fix)
    names = ", ".join(sorted({gpu.name for gpu in found.seen}))
    shown = f"{len(found.seen)} x {names}, driver {found.seen[0].driver}"
    engines = {package.name for package in machine.packages if package.installed}
    if "vllm" not in engines:
        fix = "Install the GPU build: `make EXTRAS=cuda,dev .venv/ready`."
        return fault(f"{shown}; but vLLM is the CPU build", fix)
    busy = [
        number for number, gpu in enumerate(found.seen) if gpu.used_mib > _GPU_BUSY * gpu.memory_mib
    ]
    if busy:
        fix = "`nvidia-smi` shows whose; engines take what is free when they start."
        return note(f"{shown}; memory of {busy} is in use", fix)
    return good(shown)


def interconnect(machine: Machine) -> Finding:
    """Links between GPUs and nodes, and settings of NCCL that defeat them."""
    found = machine.gpus
    settings = dict(found.nccl)
    if missing := _missing_interfaces(settings.get("NCCL_SOCKET_IFNAME", ""), found.interfaces):
        fix = f"Unset it, or name one of {', '.join(found.interfaces)}."
        return fault(f"NCCL_SOCKET_IFNAME names {missing}, which is not here", fix)
    nvlink = any(link.startswith("NV") for link in found.links)
    links = (("NVLink", nvlink, "NCCL_P2P_DISABLE"), ("RDMA", found.rdma, "NCCL_IB_DISABLE"))
    for link, there, setting in links:
        if there and settings.get(setting) == "1":
            return note(f"{link} is there, {setting}=1 keeps NCCL from it", f"Unset {setting}.")
    if found.inactive_rdma and not found.rdma:
        fix = "Look at `ibstat`: cable, switch port, subnet manager."
        return note(f"no RDMA port is active: {', '.join(found.inactive_rdma)}", fix)
    if len(found.seen) > 1 and not nvlink:
        kinds = ", ".join(sorted(set(found.links))) or "unknown"
        fix = "Prefer one engine a GPU to tensor parallelism."
        return note(f"no NVLink between the GPUs ({kinds})", fix)
    network = f"RDMA on {', '.join(found.rdma)}" if found.rdma else "TCP between nodes"
    return good(f"NVLink, {network}" if nvlink else network)


def _missing_interfaces(setting: str, interfaces: tuple[str, ...]) -> str:
    """Names in the setting that fit no interface; it takes prefixes, `=` exact, `^` not."""
    if not setting or setting.startswith("^"):
        return ""
    exact = setting.startswith("=")
    names = [name.split(":")[0] for name in setting.removeprefix("=").split(",")]
    fits = [
        any(one == name if exact else one.startswith(name) for one in interfaces) for name in names
    ]
    return "" if any(fits) else setting


def ports(machine: Machine) -> Finding:
    """Ports that a cluster wants."""
    taken = [port for port in machine.ports if port.owner and not port.owner.startswith(_OURS)]
    if taken:
        shown = "; ".join(f"{port.number} ({port.purpose}) by {port.owner}" for port in taken)
        fix = (
            "End that program, or choose others: http_options.port in the deployment file, "
            "`ray start --port --dashboard-port`."
        )
        return fault(f"in use: {shown}", fix)
    used = [f"{port.number} by {port.owner}" for port in machine.ports if port.owner]
    if used:
        return good(f"a cluster has {', '.join(used)}")
    return good("free: " + ", ".join(f"{port.number} ({port.purpose})" for port in machine.ports))


def clock(machine: Machine) -> Finding:
    """Whether a time service synchronises the clock."""
    found = machine.clock
    fix = "`apt-get install chrony`, or on a virtual machine the provider's time service."
    if found.synchronised is False:
        return note("the clock is not synchronised", fix)
    if found.error_s > _CLOCK_ERROR_S:
        return note(f"the clock may be off by {found.error_s:.1f} s", fix)
    return good("synchronised" if found.synchronised else "the kernel does not report its state")


def disks(machine: Machine) -> Finding:
    """Free space for Ray's session, runs and models."""
    for disk in machine.disks:
        where = f"{disk.path} ({disk.purpose})"
        elsewhere = f"or put it elsewhere: {_ELSEWHERE[disk.purpose]}."
        filled = 1 - disk.free / disk.size if disk.size else 0.0
        if disk.free < _FREE_GIB * GIB or filled > _RAY_STOPS_AT:
            return fault(f"{where}: {_free_text(disk)}", f"Free some, {elsewhere}")
        if disk.problem:
            return fault(f"{where}: {disk.problem}", f"Make it writable, {elsewhere}")
    shown = [f"{disk.path} ({disk.purpose}) {_free_text(disk)}" for disk in machine.disks]
    return good("; ".join(shown))


_ELSEWHERE = {
    "Ray's session": "`ray start --temp-dir`",
    "runs": "`run_root` in the run file",
    "models": "the environment variable HF_HOME",
}


def _free_text(disk: Disk) -> str:
    return f"{disk.free / GIB:.1f} of {disk.size / GIB:.1f} GiB free"


def ledger(machine: Machine) -> Finding:
    """What a run's ledger can rely on where runs are written."""
    if not machine.runs.network:
        return good(f"on {machine.runs.kind}, in WAL mode, for this host alone")
    fix = "For fewer waits choose a `run_root` on a disk of the orchestrator's node."
    return (fault if machine.runs.locks_of_one_host else note)(network_terms(machine.runs), fix)


def shared_memory(machine: Machine) -> Finding:
    """Ray's object store and weights within a node lie there."""
    found = f"/dev/shm: {_free_text(machine.shared_memory)}"
    fix = (
        "Start the container with `--shm-size=8g`, on Kubernetes mount an emptyDir with "
        "`medium: Memory`; else `mount -o remount,size=8g /dev/shm`."
    )
    return fault(found, fix) if machine.shared_memory.free < _SHM_GIB * GIB else good(found)


def pinned_memory(machine: Machine) -> Finding:
    """Whether GPUs copy at full speed from the host memory in which weights wait for a load."""
    if not machine.gpus.devices:
        return good("no GPU copies from host memory")
    limit = machine.limits.locked_bytes
    lockable = "unlimited" if limit is None else f"{limit / GIB:.2g} GiB"
    if machine.gpus.pin_problem:
        fix = (
            "Weights load all the same, but slowly: `ulimit -l unlimited` before `ray start`, or "
            "start the container with `--ulimit memlock=-1`."
        )
        found = f"CUDA does not register shared memory: {machine.gpus.pin_problem}"
        return note(f"{found}; `ulimit -l` {lockable}", fix)
    return good(f"CUDA registers shared memory; `ulimit -l` {lockable}")


def memory(machine: Machine) -> Finding:
    """Memory that is available now."""
    free = f"{machine.memory_free / GIB:.1f} GiB free"
    fix = "Close something, or raise the container's limit: the demo needs 4 GiB."
    return fault(free, fix) if machine.memory_free < _MEMORY_GIB * GIB else good(free)


def cores(machine: Machine) -> Finding:
    """Whether they are free enough for services to start in time."""
    shown = f"{machine.cores} cores, load {machine.load:.1f}"
    fix = "`top` shows what runs: services start slowly, and Ray may give up."
    return note(shown, fix) if machine.load > _BUSY * machine.cores else good(shown)


def limits(machine: Machine) -> Finding:
    """Limits of this shell, which its programs inherit."""
    found = machine.limits
    connections = f"{most_connections(found.most_open_files)} connections of clients to a router"
    shown = f"{found.most_open_files} open files, for {connections}"
    if found.most_open_files < _OPEN_FILES:
        fix = (
            f"Raise the hard limit: `LimitNOFILE={_ASKED_FILES}` in Ray's unit, `nofile` in "
            f"/etc/security/limits.conf, or `docker run --ulimit nofile={_ASKED_FILES}`."
        )
        return fault(shown, fix)
    if found.processes is not None and found.processes < _PROCESSES:
        return fault(f"{found.processes} processes", "`ulimit -u 65536` before `ray start`.")
    if machine.gpus.rdma and found.locked_bytes is not None:
        fix = "`ulimit -l unlimited`: RDMA registers memory."
        return fault(f"{found.locked_bytes >> 20} MiB of locked memory", fix)
    if found.open_files < _OPEN_FILES:
        fix = f"`ulimit -n {_ASKED_FILES}` before `ray start`: only services raise it themselves."
        return note(f"{found.open_files} open files for Ray; for services {shown}", fix)
    return good(shown)


def leftovers(machine: Machine) -> Finding:
    """Files that earlier clusters left."""
    found = machine.leftovers
    size = found.folder_bytes + found.segment_bytes
    paths = (*found.folders, *found.segments)
    if not paths:
        return good("nothing is left of earlier clusters")
    shown = f"{len(paths)} left of earlier clusters, {size / (1 << 20):.0f} MiB"
    if size < _LEFT_BYTES and not found.segments:
        return good(shown)
    return note(shown, "`rm -r " + " ".join(paths[:4]) + (" ...`" if len(paths) > 4 else "`"))


_ALL = (
    *(python, packages, sandbox, compilers, languages, gpus, interconnect, cores, memory),
    *(shared_memory, pinned_memory, disks, ledger, limits, ports, clock, leftovers),
)
CHECKS = {check.__name__.replace("_", " "): check for check in _ALL}
"""Every check of one machine, in the order in which they are shown."""
