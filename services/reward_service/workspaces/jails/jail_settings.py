"""What the jail of a workspace is told: its limits, its paths, its environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.jailed.workspace import kept_interpreter
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.network.proxy import proxy_environment

PROXY_PORT = 3128
_INTERPRETER = Path(kept_interpreter.__file__).read_text()
MARK = "MILLRACE_WORKSPACE"
"""The environment variable that tells the processes of a workspace from others."""

_FOLDER = "/work"
"""Where a jail with namespaces has the workspace."""
_TESTS = "/tests"
_HOST_NAME = "workspace"
"""What programs learn in place of the node's name."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_ETC = tuple(f"/etc/{name}" for name in ("alternatives", "ssl/certs", "ld.so.cache", "localtime"))
_DEVICES = ("/dev/urandom", "/dev/random", "/dev/zero", "/dev/full")
_TMPFS_SIZE = (0, 7)
"""The first bubblewrap that can bound a file system in memory."""
_DESCRIPTORS = 256
OWN_PROCESSES = 2
"""The first process and the kept interpreter, beside those that were asked for."""


@dataclass(frozen=True, kw_only=True)
class JailSettings:
    """What the jails of a replica have in common.

    Attributes:
        jail: how they are started.
        config: of the replica.
        folders: on the host, of the workspaces that have no file system of their own.
        tests: folder on the host that programs can read, with the tests of a workspace.
    """

    jail: Jail
    config: WorkspacesConfig
    folders: Path
    tests: Path | None = None

    @property
    def own_file_system(self) -> bool:
        """Whether a workspace is a file system in memory, which ends with its jail."""
        bubblewrap = self.jail.bubblewrap
        return bubblewrap is not None and bubblewrap.version >= _TMPFS_SIZE

    def path(self, folder: Path | None) -> str:
        """Where programs find the workspace whose folder on the host this is."""
        return _FOLDER if self.jail.namespaces or folder is None else str(folder)

    def mounts(self, spec: OpenWorkspace, folder: Path | None) -> list[str]:
        """Arguments for bubblewrap beside those of every jail."""
        if not self.jail.namespaces:
            return []
        mounts = ["--perms", "0777", "--size", str(spec.disk_mb << 20), "--tmpfs", _FOLDER]
        if folder is not None:
            mounts = ["--bind", str(folder), _FOLDER]
        mounts += ["--symlink", f"{_FOLDER}/.tmp", "/tmp", "--hostname", _HOST_NAME]
        for path in (*_ETC, *self.config.readable):
            mounts += ["--ro-bind-try", path, path]
        if self.tests is not None:
            mounts += ["--ro-bind", str(self.tests), _TESTS]
        for name in dict.fromkeys(spec.root_folders):
            if self.tests is None or f"/{name}" != _TESTS:  # those that grade have the place
                mounts += ["--symlink", f"{_FOLDER}/{name}", f"/{name}"]
        return mounts

    def check_root_folders(self, names: list[str]) -> None:
        """Look whether each can lead to a workspace.

        Raises:
            InvalidInput: there are no namespaces, or the jail itself has something there.
        """
        if names and not self.jail.namespaces:
            fix = "Without namespaces (tier B) there are none: leave it out, or install bubblewrap."
            raise InvalidInput("root_folders", names, fix)
        words = self.jail.command(0, "", self.mounts(OpenWorkspace(), None))
        own = {Path(word).parts[1] for word in words if word.startswith("/") and word != "/"}
        if taken := sorted(own.intersection(names)):
            fix = f"Jails have a /{taken[0]} of their own here: leave it out."
            raise InvalidInput("root_folders", taken[0], fix)

    @property
    def tests_path(self) -> str | None:
        """Where programs find the tests."""
        return _TESTS if self.tests is not None and self.jail.namespaces else _text(self.tests)

    def environment(self, spec: OpenWorkspace, path: str, name: str) -> dict[str, str]:
        """The environment of every program."""
        folders = ["/usr/local/bin", "/usr/bin", "/bin"]
        if self.config.python is not None:
            folders = [str(Path(self.config.python).parent), *folders]
        return {
            "PATH": ":".join(folders),
            "HOME": path,
            "TMPDIR": f"{path}/.tmp",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MPLBACKEND": "Agg",
            "MPLCONFIGDIR": f"{path}/.tmp",
            MARK: name,
            **(proxy_environment(PROXY_PORT) if spec.network else {}),
            **({"TESTS": self.tests_path} if self.tests_path is not None else {}),
        }

    def for_agent(
        self, spec: OpenWorkspace, path: str, name: str, user_id: int | None
    ) -> dict[str, Any]:
        """What the first process reads before it confines itself."""
        network, python = bool(spec.network), self.config.python
        seccomp = build_filter("workspace with a network" if network else "workspace")
        tests = [self.tests_path] if self.tests_path is not None else []
        shares_user = os.geteuid() != 0 and not self.jail.namespaces
        return {
            "filter": (seccomp.program.hex(), seccomp.own_pid_at),
            "user_id": user_id,
            "processes": (self.jail.processes if shares_user else spec.processes + OWN_PROCESSES),
            "descriptors": _DESCRIPTORS,
            "paths": {
                "executable": [*_SYSTEM, self.jail.prefix, *self.config.readable, *tests],
                "readable": [*_ETC, *_DEVICES],
                "writable": ["/dev/null"],
                "workspace": [path],
            },
            "stdlib": self.jail.stdlib,
            "stdlib_by_fd": self.jail.stdlib_by_fd,
            "folder": path,
            "root_folders": spec.root_folders,
            "own_file_system": self.own_file_system,
            "disk_bytes": spec.disk_mb << 20,
            "environment": self.environment(spec, path, name),
            "python": {"path": python, "source": _INTERPRETER},
            "proxy_port": PROXY_PORT if network else None,
        }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
