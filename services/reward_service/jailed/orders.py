"""Messages between the service and a slot: an order of tests, and what the kernel said of each."""

import os
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

SOURCE = 0
"""The first kind of processes, answers in Python. All others become programs."""
KILLED = (None, "cpu", "wall", "peer_ended")
MAX_TESTS = 64

_ORDER = struct.Struct("=5d4Q6I")
_FACTS = struct.Struct("=2d4QiIII")
_REPLY = struct.Struct("=iI")


@dataclass(frozen=True, kw_only=True)
class Order:
    """Tests of one answer. A test that does not end well is the last one that is begun.

    With it come descriptors: of the code, of the inputs one behind the other, of a file for what
    the tests write, and those that are lent.

    Attributes:
        cpu_s: processor seconds of each.
        wall_s: seconds of each.
        longest_s: seconds of all.
        begin_s: seconds after which no further test is begun.
        peer_ended_s: seconds after the end of the jail at the channel's other end.
        address_space: bytes, beyond what the fork server has.
        data: bytes of private memory that a program can write to; 0 for any. The loop in Python
            adds what the fork server has, as it does more before it becomes one.
        stack: bytes.
        output: largest file, in bytes.
        kind: of the process.
        lent: descriptors that a process has besides: two of a channel to another jail, to read from
            and to write to, or one of a file to keep compiled code in.
        stdin: bytes of each test's input.
        arguments: of a program.
        environment: of a program, as `NAME=value`.
    """

    cpu_s: float
    wall_s: float
    longest_s: float
    begin_s: float
    peer_ended_s: float
    address_space: int
    data: int
    stack: int
    output: int
    kind: int
    lent: int
    stdin: Sequence[int]
    arguments: Sequence[str] = ("program",)
    environment: Sequence[str] = ()

    def encode(self) -> bytes:
        """The message."""
        *head, stdin, arguments, environment = (getattr(self, name) for name in _ORDER_NAMES)
        head += [len(stdin), len(arguments), len(environment), 0]
        texts = "".join(f"{text}\0" for text in (*arguments, *environment))
        return _ORDER.pack(*head) + struct.pack(f"={len(stdin)}Q", *stdin) + texts.encode()

    @classmethod
    def decode(cls, message: bytes) -> "Order":
        """The order of a message."""
        *head, tests, arguments, environment, _ = _ORDER.unpack_from(message)
        stdin = struct.unpack_from(f"={tests}Q", message, _ORDER.size)
        texts = message[_ORDER.size + 8 * tests :].decode().split("\0")
        lists = stdin, texts[:arguments], texts[arguments : arguments + environment]
        return cls(**dict(zip(_ORDER_NAMES, (*head, *lists), strict=True)))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How a test's process ended, as the kernel says.

    Attributes:
        cpu_s: processor seconds.
        wall_s: seconds.
        peak_kb: most memory held, KiB.
        stdout: bytes written to standard output.
        stderr: bytes written to standard error.
        report: bytes of the report.
        exit_code: status, or minus the signal that ended it.
        killed: index in `KILLED`.
        confined: 1 if it got as far as running the answer.
    """

    cpu_s: float
    wall_s: float
    peak_kb: int
    stdout: int
    stderr: int
    report: int
    exit_code: int
    killed: int
    confined: int


_ORDER_NAMES = [field.name for field in fields(Order)]
_FACTS_NAMES = [field.name for field in fields(Facts)]


def encode_reply(error: int, facts: Sequence[Facts]) -> bytes:
    """The message; `error` is 0, or the number of what kept a test from being run."""
    parts = (_FACTS.pack(*astuple(one), 0) for one in facts)
    return _REPLY.pack(error, len(facts)) + b"".join(parts)


def decode_reply(message: bytes) -> list[Facts]:
    """The facts of the tests that were run.

    Raises:
        OSError: one could not be run.
        ValueError: it is no reply.
    """
    try:
        error, count = _REPLY.unpack_from(message)
        found = _FACTS.iter_unpack(message[_REPLY.size :])
        facts = [Facts(**dict(zip(_FACTS_NAMES, one, strict=False))) for one in found]
    except struct.error as problem:
        raise ValueError(f"no reply of a slot: {problem}") from None
    if error:
        raise OSError(error, f"a process could not be made: {os.strerror(error)}")
    if len(facts) != count or any(one.killed >= len(KILLED) for one in facts):
        raise ValueError("a reply of a slot is cut off or wrong")
    return facts
