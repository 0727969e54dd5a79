"""How a slot is started: which interpreter, behind bubblewrap or bare, as which user."""

import os
import secrets
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services.reward_service.isolation.bubblewrap import Bubblewrap
from services.reward_service.isolation.runtimes import (
    SYSTEM_READABLE,
    interpreters,
    kind_of_process,
    slot_runtimes,
)
from services.reward_service.isolation.seccomp_filter import SeccompFilter, build_filter

_JAILED = Path(__file__).parents[1] / "jailed"
SLOT = (
    *("fork_hooks", "codec", "line_pipe", "answer", "tester"),
    *("confine", "kinds", "orders", "launcher", "zygote"),
)
BUILD = ("confine", "build")
WORKSPACE = (
    "confine",
    *(f"workspace.{name}" for name in ("files", "archives", "child", "guard", "agent")),
)
"""Modules of a slot, of a compiler's jail, and of a workspace."""

# The jail's source travels over the control socket, because the slot's user may not be able
# to read the folder it lies in.
BOOT = """
import json, os, socket, sys, types
control = socket.socket(fileno=int(sys.argv[1]))
def add(name):
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        add(parent)
    module = sys.modules[name] = types.ModuleType(name)
    if parent:
        setattr(sys.modules[parent], last, module)
    return module
for name, source in json.loads(control.recv(1 << 20)):
    module = add(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(control)
"""

# PYTHONHASHSEED is fixed so that an answer's verdict does not depend on the slot; it is why
# the flags are not -I, which would ignore it.
_PYTHON_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8", "-W", "ignore")
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_BIND_NOW": "1"}

_HIGH_USER_IDS = (2_000_000_000, 147_000_000)
"""First of the user ids for slots and their number: above what systems and containers hand
out, below 2**31."""
_SHARED = "/shared"
"""Where a slot with namespaces has the folder that is shared."""
_THREADS, _SHARED_USER_THREADS = 64, 4096


@dataclass(frozen=True, kw_only=True)
class Jail:
    """A way to start slots.

    Attributes:
        bubblewrap: what makes namespaces around them; None: nothing does.
        interpreter: real path of the Python that runs answers.
        prefix: the folder it was installed to.
        stdlib: its standard library.
        shared: a folder that all answers may read, of headers that programs need when they run.
        launcher: `jailed/launcher.c`, compiled; empty where there is no compiler.
    """

    bubblewrap: Bubblewrap | None
    interpreter: str
    prefix: str
    stdlib: str
    shared: str | None = None
    launcher: bytes = b""

    @classmethod
    def here(cls, *, namespaces: bool) -> "Jail":
        """The jail for the interpreter that runs this, outside its virtual environment.

        Raises:
            NoBubblewrap: there is nothing to make namespaces with.
        """
        interpreter = getattr(sys, "_base_executable", None) or sys.executable
        return cls(
            bubblewrap=Bubblewrap.here() if namespaces else None,
            interpreter=os.path.realpath(interpreter),
            prefix=os.path.realpath(sys.base_prefix),
            stdlib=os.path.realpath(sysconfig.get_path("stdlib")),
        )

    @property
    def namespaces(self) -> bool:
        """Whether slots have namespaces of their own."""
        return self.bubblewrap is not None

    def command(self, control_fd: int, name: str, mounts: Sequence[str] = ()) -> list[str]:
        """The command line of a slot; `name` tells its processes from others.

        `mounts` are more arguments for bubblewrap, if there is one.
        """
        python = [self.interpreter, *_PYTHON_FLAGS, "-c", BOOT, str(control_fd), name]
        if self.bubblewrap is None:
            return python
        flags = _namespace_flags(self.bubblewrap)
        return [self.bubblewrap.path, *flags, *self._mounts(), *mounts, "--", *python]

    def start(
        self,
        control: socket.socket,
        name: str,
        errors: int,
        *,
        mounts: Sequence[str] = (),
        lent: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a process that reads its modules from `control` and writes errors to a file.

        It has the descriptors that are `lent`.

        Raises:
            OSError: it cannot be started.
        """
        return subprocess.Popen(
            self.command(control.fileno(), name, mounts),
            env=_ENVIRONMENT,
            pass_fds=[control.fileno(), *lent],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            start_new_session=True,
        )

    def settings(self, seccomp: SeccompFilter) -> dict[str, Any]:
        """The fork server's settings, which it reads before it confines itself."""
        as_root = os.geteuid() == 0
        paths = {
            "readable": self._readable(),
            "listable": [self.stdlib],
            "writable": ["/dev/null"],
        }
        return {
            "user_id": own_user_id() if as_root else None,
            "processes": self.processes,
            "kinds": {
                "source": kind_of_process(paths, seccomp),
                "program": kind_of_process(paths, build_filter("program")),
                **slot_runtimes(
                    namespaces=self.namespaces, shared=_SHARED if self.namespaces else self.shared
                ),
            },
            "stdlib": self.stdlib,
            "stdlib_by_fd": self.stdlib_by_fd,
        }

    @property
    def stdlib_by_fd(self) -> bool:
        """Whether a slot's user may not enter the folders above the standard library."""
        return os.geteuid() == 0 and not self.namespaces and not _open_to_all(self.stdlib)

    @property
    def processes(self) -> int:
        """Most processes and threads of a slot's user, counted by the kernel over all of them,
        so that a user shared by slots needs more."""
        shares_user = os.geteuid() != 0 and not self.namespaces
        return _SHARED_USER_THREADS if shares_user else _THREADS

    def shared_place(self, folder: Path) -> str:
        """Where slots have a folder that lies in `shared`."""
        return str(Path(_SHARED) / folder.name) if self.namespaces else str(folder)

    def reaches(self, folder: str) -> bool:
        """Whether the user of a jail can enter a folder of the host, if it is shown."""
        return self.namespaces or os.geteuid() != 0 or _open_to_all(folder)

    def _readable(self) -> list[str]:
        """The standard library without the packages installed beside it, and libraries."""
        beside = {"site-packages", "dist-packages"}
        modules = [entry.path for entry in os.scandir(self.stdlib) if entry.name not in beside]
        shared = [entry.path for entry in os.scandir(f"{self.prefix}/lib") if entry.is_file()]
        return [*modules, *shared, *SYSTEM_READABLE]

    def _mounts(self) -> list[str]:
        mounts = ["--ro-bind", "/usr", "/usr", "--dev", "/dev", "--chdir", "/", "--clearenv"]
        for name in ("lib", "lib64", "lib32", "bin"):
            path = Path("/", name)
            if path.is_symlink():
                mounts += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                mounts += ["--ro-bind", str(path), str(path)]
        for folder in dict.fromkeys((self.prefix, str(Path(self.interpreter).parent))):
            path = Path(folder)
            if not path.is_relative_to("/usr") and Path(self.prefix) not in path.parents:
                mounts += bound(folder, folder)
        for tool in interpreters():
            mounts += (word for places in tool.mounts() for word in bound(*places))
        if self.shared is not None:
            mounts += ["--ro-bind", self.shared, _SHARED]
        for name, value in _ENVIRONMENT.items():
            mounts += ["--setenv", name, value]
        return mounts


def bound(folder: str, place: str) -> list[str]:
    """Arguments for bubblewrap that show a folder of the host where any user can enter."""
    mounts: list[str] = []
    for parent in reversed(Path(place).parents[:-1]):
        mounts += ["--perms", "0755", "--dir", str(parent)]
    return [*mounts, "--ro-bind", folder, place]


@cache
def jailed_sources(modules: tuple[str, ...]) -> list[tuple[str, str]]:
    """Name and source of every module of a jail, dependencies first, the one with `main` last."""
    package = "services.reward_service.jailed"
    files = {name: (_JAILED / name.replace(".", "/")).with_suffix(".py") for name in modules}
    return [(f"{package}.{name}", path.read_text()) for name, path in files.items()]


def _namespace_flags(bubblewrap: Bubblewrap) -> list[str]:
    flags = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    flags += ["--unshare-cgroup-try", "--as-pid-1", "--die-with-parent", "--new-session"]
    if os.geteuid() == 0:
        # No user namespace: it would map only root, and the fork server leaves root for a
        # user id of its own, for which it needs these until then.
        flags += ["--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            flags += ["--cap-add", capability]
    else:
        flags += ["--unshare-user"]
        if bubblewrap.disables_user_namespaces and not _sysctls_are_read_only():
            flags += ["--disable-userns"]
    return flags


def _sysctls_are_read_only() -> bool:
    """Whether `--disable-userns`, which sets one, would fail; they are so in containers."""
    try:
        return bool(os.statvfs("/proc/sys/user").f_flag & os.ST_RDONLY)
    except FileNotFoundError:  # a kernel without user namespaces
        return True


def _open_to_all(folder: str) -> bool:
    """Whether any user can enter this folder from the root."""
    path = Path(folder)
    return all(step.stat().st_mode & 0o001 for step in (path, *path.parents))


def own_user_ids() -> range:
    """The user ids of sandboxes, within what this user namespace maps."""
    first, count = _HIGH_USER_IDS
    mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    end = max(int(start) + int(length) for start, _, length in mapped)
    if end < first + count:
        count = min(4096, end // 2)
        first = end - count
    return range(first, first + count)


def own_user_id() -> int:
    """A user id that no other slot has."""
    return secrets.choice(own_user_ids())
