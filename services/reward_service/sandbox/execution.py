"""What a slot runs, and the outcome that it reports."""

import fcntl
import json
import os
import re
import signal
import weakref
from dataclasses import dataclass
from functools import cached_property

from services.protocol.reward.code_tests import Limits

_READ_ONLY = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_REFUSED = re.compile(rb"(?m)^!?PermissionError: \[Errno (\d+)\]")
_TAIL_BYTES = 1000
_BY_ERRNO = {1: "seccomp", 13: "landlock"}
"""The filter answers a call that it does not allow with EPERM, Landlock a path with EACCES."""
_BY_SIGNAL = {-signal.SIGXFSZ: "output", -signal.SIGSYS: "seccomp"}


class SlotLost(RuntimeError):
    """The slot died or fell silent while it ran something."""


class SlotFailed(RuntimeError):
    """The slot could not start, or could not confine a process: no code was run."""


class SandboxCrashed(RuntimeError):
    """One answer lost two slots, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One process to run.

    Attributes:
        payload: JSON for `jailed.answer`; empty for a compiled program.
        stdin: what it can read.
        limits: what it may use.
        wall_s: seconds after which a process is killed that does not use its processor time.
        program: descriptor of a compiled program to run instead of a payload.
        channel: descriptors to read from and to write to another jail.
        peer_ended_s: seconds after the other jail's end at which the process is killed.
    """

    payload: bytes
    stdin: bytes
    limits: Limits
    wall_s: float
    program: int | None = None
    channel: tuple[int, int] | None = None
    peer_ended_s: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a process ended: facts of the kernel, and bytes that it wrote.

    Attributes:
        exit_code: its status, or minus the signal that ended it.
        killed: the limit at which the slot killed it: `cpu`, `wall`, or `peer_ended` if it
            outlived the jail at its channel's other end; None if it ended by itself.
        cpu_s: processor seconds, user and system.
        wall_s: seconds from start to end.
        peak_kb: most memory held, KiB, what it had of the fork server included.
        stdout: everything written to standard output, at most the output limit.
        stderr: likewise.
        report: lines in the form of `jailed.answer`; written by the answer's own process,
            so never to be believed, only compared.
    """

    exit_code: int
    killed: str | None
    cpu_s: float
    wall_s: float
    peak_kb: int
    stdout: bytes
    stderr: bytes
    report: bytes

    @property
    def denied_by(self) -> str | None:
        """The layer of the jail that ended the process, as far as it can be known from outside.

        `cpu` and `wall` are the slot's clocks, `output` the limit on files, `seccomp` and
        `landlock` the filters. The filters answer a denied call with an error: it shows only where
        a Python answer let it end the program, by what the answer itself wrote. So this counts, and
        judges nothing.
        """
        if self.killed is not None or self.exit_code == 0:
            return self.killed
        if self.exit_code in _BY_SIGNAL:
            return _BY_SIGNAL[self.exit_code]
        written = self.report[-_TAIL_BYTES:] + b"\n" + self.stderr[-_TAIL_BYTES:]
        refused = _REFUSED.search(written)
        return None if refused is None else _BY_ERRNO.get(int(refused[1]))


class Binary:
    """A compiled program: a sealed memory file that lives as long as this object."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self.descriptor = sealed_file(content)
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(frozen=True, kw_only=True)
class Program:
    """An answer's code: Python source, or a compiled program.

    Attributes:
        source: of Python; empty if compiled.
        binary: a compiled program.
    """

    source: str = ""
    binary: Binary | None = None

    def run(self, stdin: str, limits: Limits) -> Execution:
        """The whole program, once."""
        return self._execution(self._whole, stdin.encode("utf-8", "surrogatepass"), limits)

    @cached_property
    def _whole(self) -> bytes:
        return b"" if self.binary is not None else json.dumps({"source": self.source}).encode()

    def calls(
        self, entry_point: str, calls: list[str], limits: Limits, *, as_plain: bool = False
    ) -> Execution:
        """Calls of one function in one process; arguments as texts of `jailed.codec`.

        `as_plain` is for results that are compared as Python's `==` does.
        """
        if self.binary is not None:
            return self._execution(b"", "".join(f"{text}\n" for text in calls).encode(), limits)
        order = {"source": self.source, "entry_point": entry_point}
        payload = json.dumps({**order, "calls": calls, "as_plain": as_plain}).encode()
        return self._execution(payload, b"", limits)

    def callee(self, entry_point: str, limits: Limits) -> Execution:
        """One process that answers the calls of tests in another jail."""
        order = {"source": self.source, "entry_point": entry_point, "calls": None}
        return self._execution(json.dumps(order).encode(), b"", limits)

    def _execution(self, payload: bytes, stdin: bytes, limits: Limits) -> Execution:
        return Execution(
            payload=payload,
            stdin=stdin,
            limits=limits,
            wall_s=idle_limit_s(limits),
            program=None if self.binary is None else self.binary.descriptor,
        )


def idle_limit_s(limits: Limits) -> float:
    """Wall time after which a process that uses no processor time is killed."""
    return 2 * limits.cpu_s + 2.0


def sealed_file(content: bytes) -> int:
    """A memory file that nobody can change any more; the caller closes it."""
    descriptor = os.memfd_create("slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _READ_ONLY)
    return descriptor
