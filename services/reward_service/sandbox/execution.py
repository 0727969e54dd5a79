"""What a slot runs, and the outcome that it reports."""

import fcntl
import marshal
import math
import os
import re
import signal
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from services.protocol.reward.code_tests import Limits
from services.reward_service.jailed.orders import KILLED, Order, decode_reply
from services.reward_service.sandbox.launch import Launch

_READ_ONLY = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_REFUSED = re.compile(rb"(?m)^!?PermissionError: \[Errno (\d+)\]")
_TAIL_BYTES = 1000
_SIZE_BYTES = 8
_PYTHON_STACK = 64 << 20
_BY_ERRNO = {1: "seccomp", 13: "landlock"}
"""The filter answers a call that it does not allow with EPERM, Landlock a path with EACCES."""
_BY_SIGNAL = {-signal.SIGXFSZ: "output", -signal.SIGSYS: "seccomp"}


class SlotLost(RuntimeError):
    """The slot died or fell silent while it ran something."""


class SlotFailed(RuntimeError):
    """The slot could not start, or could not confine a process: no code was run."""


class ToolMissing(SlotFailed):
    """A compiler or interpreter is not installed, or jails cannot reach it."""


class SandboxCrashed(RuntimeError):
    """One answer lost two slots, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A process to run, and perhaps more of the same.

    Attributes:
        payload: for `jailed.answer`, as `marshal` has it; empty for a compiled program.
        stdin: what it can read.
        limits: what it may use.
        wall_s: seconds after which a process is killed that does not use its processor time.
        program: descriptor of a program to run instead of a payload.
        launch: how the program is started; None: it is an executable that needs nothing.
        more: what further processes can read, each begun only if those before it ended well.
        longest_s: seconds for all of them.
        compiled: descriptor of Python code that an earlier process kept, to run in place of the
            payload.
        lent: descriptors that the process has besides: a channel to another jail, to read from and
            to write to; or a file for the code that it compiles.
        peer_ended_s: seconds after the other jail's end at which the process is killed.
    """

    payload: bytes
    stdin: bytes
    limits: Limits
    wall_s: float
    program: int | None = None
    launch: Launch | None = None
    more: tuple[bytes, ...] = ()
    longest_s: float = math.inf
    compiled: int | None = None
    lent: tuple[int, ...] = ()
    peer_ended_s: float = 0.5

    @property
    def kind(self) -> str:
        """Of the process, one of those that slots prepare: `isolation.jail.Jail.settings`."""
        if self.launch is not None:
            return self.launch.language
        return "source" if self.program is None else "program"

    def order(self, kind: int, *, begin_s: float) -> Order:
        """The message to a slot in which the kind has this number, and no test is begun later."""
        memory = self.limits.memory_mb << 20
        order = Order(
            cpu_s=self.limits.cpu_s,
            wall_s=self.wall_s,
            longest_s=self.longest_s,
            begin_s=begin_s,
            peer_ended_s=self.peer_ended_s,
            address_space=memory,
            data=0,
            stack=_PYTHON_STACK if self.program is None else memory,
            output=self.limits.output_kb << 10,
            kind=kind,
            lent=len(self.lent),
            stdin=[len(one) for one in (self.stdin, *self.more)],
        )
        return order if self.launch is None else self.launch.applied(order, self.limits)


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
    """A program: a sealed memory file that lives as long as this object."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self.descriptor = sealed_file(content)
        weakref.finalize(self, os.close, self.descriptor)


class KeptCode:
    """A memory file in which an answer's process keeps the code that it compiled.

    It does so before the code runs, so nothing that a test did can reach another through it. The
    service never reads the code.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._sealed = False
        weakref.finalize(self, os.close, self.descriptor)

    @property
    def complete(self) -> bool:
        """Whether all of it is there; nobody can change it from then on."""
        if not self._sealed and (size := os.fstat(self.descriptor).st_size) > _SIZE_BYTES:
            end = os.pread(self.descriptor, _SIZE_BYTES, size - _SIZE_BYTES)
            if int.from_bytes(end, "little") == size - _SIZE_BYTES:
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _READ_ONLY)
                self._sealed = True
        return self._sealed


@dataclass(frozen=True, kw_only=True)
class Program:
    """An answer's code: Python source, or a program.

    Attributes:
        source: of Python; not used where there is a program.
        binary: an executable, or what an interpreter runs.
        launch: how the program is started; None: it is an executable that needs nothing.
    """

    source: str = ""
    binary: Binary | None = None
    launch: Launch | None = None

    def run(self, stdin: str, limits: Limits, more: Sequence[str] = ()) -> Execution:
        """The whole program, once for each input. Python is compiled by the first process."""
        first, *others = (text.encode("utf-8", "surrogatepass") for text in (stdin, *more))
        execution = replace(self._execution(self._whole, first, limits), more=tuple(others))
        if self.binary is not None:
            return execution
        kept = self._kept
        if kept.complete:
            return replace(execution, compiled=kept.descriptor)
        if others:
            return execution
        payload = marshal.dumps({"source": self.source, "keep": True})
        return replace(execution, payload=payload, lent=(kept.descriptor,))

    @cached_property
    def _whole(self) -> bytes:
        return b"" if self.binary is not None else marshal.dumps({"source": self.source})

    @cached_property
    def _kept(self) -> KeptCode:
        return KeptCode()

    def calls(
        self, entry_point: str, calls: list[str], limits: Limits, *, as_plain: bool = False
    ) -> Execution:
        """Calls of one function in one process; arguments as texts of `jailed.codec`.

        `as_plain` is for results that are compared as Python's `==` does.
        """
        if self.binary is not None:
            return self._execution(b"", "".join(f"{text}\n" for text in calls).encode(), limits)
        order = {"source": self.source, "entry_point": entry_point}
        payload = marshal.dumps({**order, "calls": calls, "as_plain": as_plain})
        return self._execution(payload, b"", limits)

    def callee(self, entry_point: str, limits: Limits) -> Execution:
        """One process that answers the calls of tests in another jail."""
        order = {"source": self.source, "entry_point": entry_point, "calls": None}
        return self._execution(marshal.dumps(order), b"", limits)

    def _execution(self, payload: bytes, stdin: bytes, limits: Limits) -> Execution:
        return Execution(
            payload=payload,
            stdin=stdin,
            limits=limits,
            wall_s=idle_limit_s(limits),
            program=None if self.binary is None else self.binary.descriptor,
            launch=self.launch,
        )


def idle_limit_s(limits: Limits) -> float:
    """Wall time after which a process that uses no processor time is killed."""
    return 2 * limits.cpu_s + 2.0


def opened_anew(descriptor: int) -> int:
    """The same file with a position of its own, at the beginning; the caller closes it."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def sealed_file(content: bytes) -> int:
    """A memory file that nobody can change any more; the caller closes it."""
    descriptor = os.memfd_create("slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _READ_ONLY)
    return descriptor


def read_outcomes(answer: bytes, outputs: int) -> list[Outcome]:
    """The outcomes of a slot's answer and of the file that it wrote the outputs to.

    Raises:
        SlotFailed: a process could not be made or confined.
        ValueError: no slot in order would answer so.
    """
    try:
        facts = decode_reply(answer)
    except OSError as error:
        raise SlotFailed(f"a process could not be made: {error.strerror}") from error
    written = sum(one.stdout + one.stderr + one.report for one in facts)
    if written != os.fstat(outputs).st_size:
        raise ValueError(f"a slot says that it wrote {written} bytes, and did not")
    at, outcomes = 0, list[Outcome]()
    for one in facts:
        texts = list[bytes]()
        for size in (one.stdout, one.stderr, one.report):
            texts.append(os.pread(outputs, size, at) if size else b"")
            at += size
        stdout, stderr, report = texts
        if not one.confined:
            said = stderr[-300:].decode(errors="replace")
            raise SlotFailed(f"a process could not be confined: {said}")
        outcomes.append(
            Outcome(
                exit_code=one.exit_code,
                killed=KILLED[one.killed],
                cpu_s=one.cpu_s,
                wall_s=one.wall_s,
                peak_kb=one.peak_kb,
                stdout=stdout,
                stderr=stderr,
                report=report,
            )
        )
    return outcomes
