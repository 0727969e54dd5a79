"""Machines that are alone but for their cables: namespaces of this kernel, joined by bridges.

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
PREFIX = "10.213"
"""Nobody else sees these addresses, so they need not be free on the host."""
_FIRST = 77  # subnet of the first cables

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
        keep = f"hostname {name}; mount -t tmpfs -o size=6g,mode=755 disk {disk}"
        keep += "; mount -t tmpfs -o size=4g,mode=1777 shm /dev/shm"
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
    """A space with a cable to each bridge, in a subnet of its own.

    Attributes:
        address: of its first cable.
        interfaces: `eth0`, and so on: the ends of the cables here.
    """

    def __init__(self, name: str, disk: Path, number: int, bridge: Space, cables: int = 1) -> None:
        super().__init__(name, disk)
        self.address, self._bridge = f"{PREFIX}.{_FIRST}.{number}", bridge
        self.interfaces = tuple(f"eth{cable}" for cable in range(cables))
        for cable, interface in enumerate(self.interfaces):
            there = self._at_bridge(cable)
            ends = ["type", "veth", "peer", "name", interface, "netns", str(self.pid)]
            bridge.ip("link", "add", "name", there, *ends)
            bridge.ip("link", "set", there, "master", f"bridge{cable}", "up")
            address = f"{PREFIX}.{_FIRST + cable}.{number}"
            self.ip("address", "add", f"{address}/24", "dev", interface)
            self.ip("link", "set", interface, "up")

    def _at_bridge(self, cable: int) -> str:
        return f"{self.name}.{cable}"

    @property
    def received(self) -> int:
        """Bytes that came over all cables."""
        return sum(self._counted(0).values())

    @property
    def sent(self) -> int:
        """Bytes that left over all cables."""
        return sum(self.sent_by_interface.values())

    @property
    def sent_by_interface(self) -> dict[str, int]:
        """Bytes that left over each cable."""
        return self._counted(8)

    def _counted(self, column: int) -> dict[str, int]:
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        counts = {name.strip(): rest.split() for name, _, rest in (x.partition(":") for x in lines)}
        return {interface: int(counts[interface][column]) for interface in self.interfaces}

    def limit_cables(self, mbit_s: float) -> None:
        """Let each cable carry no more in each direction."""
        for cable, interface in enumerate(self.interfaces):
            self.limit(interface, mbit_s)
            self._bridge.limit(self._at_bridge(cable), mbit_s)

    def cut(self) -> None:
        """Pull the cables at their bridges: nothing arrives any more, and nobody is told."""
        for cable, _ in enumerate(self.interfaces):
            self._bridge.ip("link", "set", self._at_bridge(cable), "nomaster")

    def heal(self) -> None:
        """Plug them in again."""
        for cable, _ in enumerate(self.interfaces):
            self._bridge.ip("link", "set", self._at_bridge(cable), "master", f"bridge{cable}")

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
    """Machines on bridges; a context manager that leaves nothing behind.

    Attributes:
        disk: where every machine has its own disk; short, for the paths of sockets.
        machines: by name.
    """

    def __init__(self, names: Sequence[str], *, cables: int = 1) -> None:
        self._names, self._cables = names, cables
        self.disk = Path()
        self.machines: Mapping[str, Machine] = {}

    def __enter__(self) -> Self:
        self.disk = Path(tempfile.mkdtemp(prefix="millrace-", dir="/tmp"))
        self._everything = contextlib.ExitStack()
        self._everything.callback(self.disk.rmdir)  # of the host, where it stays empty
        try:
            bridge = self._opened(Space("bridge", self.disk))
            for cable in range(self._cables):
                bridge.ip("link", "add", "name", f"bridge{cable}", "type", "bridge")
                bridge.ip("link", "set", f"bridge{cable}", "up")
            self.machines = {
                name: self._opened(Machine(name, self.disk, number, bridge, self._cables))
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
