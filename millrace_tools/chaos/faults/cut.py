"""A node without a network: packets to and from others are dropped, as by a dead switch.

The fault process's connection to the command is let through: when the command, which may run on
another host, ends, the node is healed.
"""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from millrace_tools.chaos.faults.fault_action import IDLE_S, FaultAction

_DROPPED = (
    ("INPUT", "!", "-i", "lo", "-j", "DROP"),
    ("OUTPUT", "!", "-o", "lo", "-j", "DROP"),
)
_MARK = ("-m", "comment", "--comment", "millrace-chaos")
_IPV4, _IPV6 = "iptables", "ip6tables"
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_LOCK_S = "5"
"""For others who change rules at the same time; to heal has no deadline."""
_ANSWER_S = 1.0
"""The answer to the command must leave the node first."""


class Cut(FaultAction):
    """Rules of iptables in the fault process's network namespace, which is its node's."""

    def __init__(self, order: dict[str, Any]) -> None:
        super().__init__(order)
        programs = (_IPV4, _IPV6) if _speaks_ipv6() else (_IPV4,)
        dropped = [(program, *rule) for program in programs for rule in _DROPPED]
        self._rules = [*dropped, *_control_connection()]
        self._ticks = 0

    def begin(self) -> None:
        """See whether rules can be set; they are after a second.

        Raises:
            OSError: no iptables, or no right to use it; no ip6tables where the node has an IPv6
                address, at which it would still be reached.
        """
        for program in sorted({program for program, *_ in self._rules}):
            _call(program, "-w", _LOCK_S, "-L", "INPUT")

    def tick(self) -> float:
        """Cut, at the second call."""
        self._ticks += 1
        if self._ticks == 1:
            return _ANSWER_S
        if self._ticks == 2:
            for program, chain, *rule in self._rules:  # each above those before it
                _call(program, "-w", _LOCK_S, "-I", chain, "1", *rule, *_MARK)
        return IDLE_S

    def end(self) -> None:
        """Heal, each direction for itself."""
        if self._ticks > 1:
            with ExitStack() as healing:
                for program, *rule in self._rules:
                    healing.callback(_call, program, "-w", "-D", *rule, *_MARK)


def _speaks_ipv6() -> bool:
    """Whether an interface that leads out of the node has an IPv6 address."""
    if not _IPV6_ADDRESSES.exists():  # a kernel without IPv6
        return False
    lines = _IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()
    return any(line.split()[-1] != "lo" for line in lines)


def _control_connection() -> list[tuple[str, ...]]:
    """Rules that let standard input's connection through; none if it is a pipe."""
    try:
        connection = socket.socket(fileno=sys.stdin.fileno())
    except OSError:  # a pipe
        return []
    program = _IPV6 if connection.family == socket.AF_INET6 else _IPV4
    (address, port), (its, its_port) = connection.getsockname()[:2], connection.getpeername()[:2]
    connection.detach()
    to = ("-s", address, "--sport", str(port), "-d", its, "--dport", str(its_port))
    back = ("-s", its, "--sport", str(its_port), "-d", address, "--dport", str(port))
    return [
        (program, "OUTPUT", "-p", "tcp", *to, "-j", "ACCEPT"),
        (program, "INPUT", "-p", "tcp", *back, "-j", "ACCEPT"),
    ]


def _call(program: str, *arguments: str) -> None:
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise OSError(f"there is no {program}: apt-get install iptables") from None
    if done.returncode:
        raise OSError(f"{program}: {done.stderr.strip()}")
