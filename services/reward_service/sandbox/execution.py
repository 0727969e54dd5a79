"""What a slot is asked to run, and what it can truthfully say about it."""

from dataclasses import dataclass

from services.protocol.reward.reward_service import Limits


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One process to run.

    Attributes:
        payload: JSON for `jailed.answer`; empty for a compiled program.
        stdin: what it can read.
        limits: what it may use.
        wall_s: when to give up on a process that does not use its processor time.
        program: descriptor of a compiled program to run instead of a payload.
        channel: descriptors to read from and to write to another jail.
        left_s: when to give up on a process that does not end although the other jail has.
    """

    payload: bytes
    stdin: bytes
    limits: Limits
    wall_s: float
    program: int | None = None
    channel: tuple[int, int] | None = None
    left_s: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a process ended: facts of the kernel, and bytes that it wrote.

    Attributes:
        exit_code: its status, or minus the signal that ended it.
        killed: the limit at which the slot killed it, `cpu` or `wall`, or `left` if it did not
            end although the jail at its channel's other end had.
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


class SlotLost(RuntimeError):
    """The slot died or fell silent while it ran something."""


class SlotFailed(RuntimeError):
    """The slot could not start, or could not confine a process: nobody's code was run."""
