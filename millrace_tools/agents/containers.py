"""Containers that the programs of episodes run in, made by docker or podman."""

import ipaddress
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from millrace_tools.client.services_url import split_url
from services.process_identity import is_gone, this_process
from services.protocol.errors import InvalidInput

INSIDE = PurePosixPath("/millrace")
"""Where a container sees the files that it shares with `agent-run`."""

_RUNTIMES = ("docker", "podman")
_LABEL = "millrace.agent-run"
_ANSWER_S, _PULL_S = 60.0, 3600.0
_STOP_S = 1
"""A container that must be removed has had its time to end by itself."""
_REMOVALS = 3
"""On a busy machine a container's processes may outlive the runtime's patience once."""


class Containers:
    """Starts programs in containers of one image, and removes the containers.

    A container is removed when its program ends, when its episode ends before that, and, if
    `agent-run` was killed, by the next `agent-run` of the same user and machine.

    Args:
        image: which is pulled if it is not there.
        settings: further arguments of `docker run`, such as limits.

    Raises:
        InvalidInput: there is neither docker nor podman, or no such image, or the settings are not
            good.
    """

    def __init__(self, image: str, settings: Sequence[str]) -> None:
        self._image, self._settings = image, settings
        self._runtime = working_runtime(image)
        self._owner = _owner()
        self._label = f"--label={_LABEL}={json.dumps(self._owner)}"
        self._pull()
        self._try()

    def command(
        self, name: str, *, shared: Path, variables: Iterable[str], program: Sequence[str]
    ) -> list[str]:
        """The command that runs a program in a container and ends with its status.

        Args:
            name: of the container.
            shared: a folder that it sees as `INSIDE`.
            variables: names of variables that it gets from the environment of the command: their
                values, which are keys, are not for those who list processes.
            program: with its arguments.
        """
        return [
            *(self._runtime, "run", "--rm", "--pull=never", f"--name={name}"),
            *(self._label, f"--stop-timeout={_STOP_S}"),
            f"--volume={shared.resolve()}:{INSIDE}:Z",  # Z: SELinux lets the container use it
            *(f"--env={variable}" for variable in variables),
            *self._settings,
            self._image,
            *program,
        ]

    def remove(self, *names: str) -> str:
        """End containers, if there still are such, and remove them; returns what went wrong."""
        for _ in range(_REMOVALS):
            done = _output(self._runtime, "rm", "--force", *names)
            if done.returncode == 0:
                break
        return done.stderr

    def remove_orphans(self) -> int:
        """Remove the containers of each `agent-run` that was killed; returns how many."""
        listed = ("ps", "--all", "--quiet", f"--filter=label={_LABEL}")
        ids = _output(self._runtime, *listed).stdout.split()
        shown = f'{{{{.Name}}}} {{{{index .Config.Labels "{_LABEL}"}}}}'
        # One that has ended since then makes the command fail, and the others are shown.
        lines = _output(self._runtime, "inspect", f"--format={shown}", *ids) if ids else None
        owners = [line.partition(" ") for line in lines.stdout.splitlines()] if lines else []
        orphans = [name for name, _, owner in owners if self._is_orphan(owner)]
        if orphans:
            self.remove(*orphans)
        return len(orphans)

    def _is_orphan(self, label: str) -> bool:
        try:
            owner: dict[str, Any] = json.loads(label)
        except ValueError:
            return False
        # Other users' processes may be hidden from this one.
        return owner.get("user") == self._owner["user"] and is_gone(owner)

    def _pull(self) -> None:
        if _output(self._runtime, "image", "inspect", self._image).returncode == 0:
            return
        pull = [self._runtime, "pull", self._image]
        try:
            subprocess.run(pull, stdin=subprocess.DEVNULL, timeout=_PULL_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            fix = f"Build it, or see why `{' '.join(pull)}` fails."
            raise InvalidInput("--image", self._image, fix) from None

    def _try(self) -> None:
        """Make a container and remove it: else each episode would fail."""
        name = new_name()
        settings = (self._label, "--pull=never", f"--name={name}", *self._settings)
        made = _output(self._runtime, "create", *settings, self._image, "true")
        self.remove(name)
        if made.returncode:
            fix = f"No container of it can be made: {_last_line(made)}"
            raise InvalidInput("--image", self._image, fix)


def new_name() -> str:
    """Of a container, for no other one."""
    return f"millrace-{secrets.token_hex(8)}"


def network_of(url: str, network: str | None) -> list[str]:
    """The settings by which a container reaches a router.

    Args:
        url: of the router, as containers are told it.
        network: that the user wants, None for the one that reaches the router.

    Raises:
        InvalidInput: the network does not reach a router of this machine.
    """
    if not _is_loopback(url):
        return [] if network is None else [f"--network={network}"]
    if network not in (None, "host"):
        fix = f"{url} is the container itself there: say with --container-url what the router is."
        raise InvalidInput("--network", network, fix)
    return ["--network=host"]


def _is_loopback(url: str) -> bool:
    host = split_url(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _owner() -> dict[str, str]:
    return {**this_process(), "user": str(os.getuid())}


def working_runtime(image: str) -> str:
    """Docker, if its daemon answers, else podman.

    Args:
        image: that it is wanted for.

    Raises:
        InvalidInput: neither can be used.
    """
    found = []
    for name in _RUNTIMES:
        if shutil.which(name) is None:
            found.append(f"no {name}")
            continue
        asked = _output(name, "version")
        if asked.returncode == 0:
            return name
        found.append(f"{name}: {_last_line(asked)}")
    raise InvalidInput("--image", image, f"Install docker or podman; {'; '.join(found)}")


def _output(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {_ANSWER_S:g} s")


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"
