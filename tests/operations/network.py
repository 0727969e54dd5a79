"""Machines that are alone but for one cable: namespaces of this kernel, joined by a bridge.

Each machine has a network, a process table, a host name and a disk of its own: a folder that has
the same path everywhere and another content. The bridge lies in a namespace of its own too, so
nothing leads out of it, nothing of it has a name on the host, and everything goes with the
first process of each namespace, which ends when this process closes its standard input or dies.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

CLONE_NEWNET = 0x40000000
PREFIX = "10.213.77"
"""Nobody else sees these addresses, so they need not be free on the host."""

_STARTED_S = 20.0
_ENDED_S = 120.0


def why_not() -> str | None:
    """Why this machine cannot be split, None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root"
    needed = {"ip": "iproute2", "unshare": "util-linux", "iptables": "iptables"}
    for program, package in needed.items():
        if shutil.which(program) is None:
            return f"there is no `{program}`: apt-get install {package}"
    cable = "ip link add name b0 type bridge && ip link add name v0 type veth peer name v1"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", cable],
        capture_output=True,
        text=True,
        timeout=_STARTED_S,
    )
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


class Space:
    """Namespaces, kept by one process that waits for the end of its standard input."""

    def __init__(self, name: str, disk: Path) -> None:
        self.name, self._disk = name, disk
        # dash waits for whatever child ends, so it also takes in those that lost their parent.
        keep = f"hostname {name}; mount -t tmpfs -o size=1g,mode=755 disk {disk}"
        keep += "; mount -t tmpfs -o size=1g,mode=1777 shm /dev/shm"
        keep += "; ip link set lo up; echo up; cat; exit"
        unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        self._keeper = subprocess.Popen(
            [*unshare, "--mount-proc", "sh", "-c", keep],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"up\n", f"{name} did not come up"
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children")
        (self.pid,) = (int(pid) for pid in children.read_text().split())

    def command(self, *command: str) -> list[str]:
        """The command line that runs `command` here."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts"]
        return [*enter, "--", *command]

    def ip(self, *arguments: str) -> None:
        """Change the network here; processes are called by the host's numbers."""
        self._in_network("ip", *arguments)

    def limit(self, device: str, mbit_s: float) -> None:
        """Let a device send no faster."""
        rate = ["rate", f"{mbit_s}mbit", "burst", "128kb", "latency", "100ms"]
        self._in_network("tc", "qdisc", "add", "dev", device, "root", "tbf", *rate)

    def _in_network(self, *command: str) -> None:
        enter = ["nsenter", "--target", str(self.pid), "--net", "--"]
        subprocess.run([*enter, *command], check=True, timeout=_STARTED_S)

    def path(self, path: str | Path) -> Path:
        """A path of this machine as the host sees it."""
        return Path(f"/proc/{self.pid}/root{path}")

    def close(self) -> None:
        """End everything here: without their first process the others die, too."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(_ENDED_S)


class Machine(Space):
    """A space with an address.

    Attributes:
        address: its only one but loopback.
    """

    def __init__(self, name: str, disk: Path, address: str, bridge: Space) -> None:
        super().__init__(name, disk)
        self.address, self._bridge = address, bridge
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(self.pid)]
        bridge.ip("link", "add", "name", name, *cable)
        bridge.ip("link", "set", name, "master", "bridge0", "up")
        self.ip("address", "add", f"{address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    @property
    def received(self) -> int:
        """Bytes that came over the cable."""
        return self._counted(0)

    @property
    def sent(self) -> int:
        """Bytes that left over the cable."""
        return self._counted(8)

    def _counted(self, column: int) -> int:
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        (line,) = (line for line in lines if line.strip().startswith("eth0:"))
        return int(line.partition(":")[2].split()[column])

    def limit_cable(self, mbit_s: float) -> None:
        """Let the cable carry no more in each direction."""
        self.limit("eth0", mbit_s)
        self._bridge.limit(self.name, mbit_s)

    def cut(self) -> None:
        """Pull the cable at the bridge: nothing arrives any more, and nobody is told."""
        self._bridge.ip("link", "set", self.name, "nomaster")

    def heal(self) -> None:
        """Plug it in again."""
        self._bridge.ip("link", "set", self.name, "master", "bridge0")

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """What this thread connects to within this context, it connects to from here."""
        setns = ctypes.CDLL(None, use_errno=True).setns
        with open("/proc/thread-self/ns/net") as before, open(f"/proc/{self.pid}/ns/net") as here:
            assert setns(here.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert setns(before.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


class Network:
    """Machines on one bridge; a context manager that leaves nothing behind.

    Attributes:
        disk: where every machine has its own disk; short, for the paths of sockets.
        machines: by name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.disk = Path()
        self.machines: Mapping[str, Machine] = {}

    def __enter__(self) -> Self:
        self.disk = Path(tempfile.mkdtemp(prefix="millrace-", dir="/tmp"))
        self._everything = contextlib.ExitStack()
        self._everything.callback(self.disk.rmdir)  # of the host, where it stays empty
        try:
            bridge = self._opened(Space("bridge", self.disk))
            bridge.ip("link", "add", "name", "bridge0", "type", "bridge")
            bridge.ip("link", "set", "bridge0", "up")
            self.machines = {
                name: self._opened(Machine(name, self.disk, f"{PREFIX}.{number}", bridge))
                for number, name in enumerate(self._names, 1)
            }
        except BaseException:
            self._everything.close()
            raise
        return self

    def _opened(self, space: Any) -> Any:
        self._everything.callback(space.close)
        return space

    def __exit__(self, *_: object) -> None:
        self._everything.close()


def wait_for(true: Any, what: str, timeout_s: float) -> float:
    """Wait until `true()`; returns the seconds it took.

    Raises:
        AssertionError: not in time.
    """
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < timeout_s, f"not in {timeout_s:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - began
