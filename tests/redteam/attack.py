"""One attack: what an answer tries, and how it must end."""

from dataclasses import dataclass, field

from services.protocol.reward.reward_service import Verdict

SECRET = 918273645
"""The expected result. An answer that names it says that its attack got through; any other
would have to find it."""

CANARIES = {"environment": "canary-7f3a-environment", "file": "canary-7f3a-file"}
"""Lie in the environment of the service and on its disk; no answer may ever show one."""

FAILS = frozenset({Verdict.RUNTIME_ERROR, Verdict.WRONG_ANSWER})
"""For what is denied: the error ends the answer, or the answer survives it with nothing."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A Python answer.

    Attributes:
        code: defines `f`, or is a whole program.
        ends: the verdicts that are right.
        program: it is judged by what it prints.
        cpu_s: its limit.
        costly: takes seconds, so it runs with `--all-attacks` only.
    """

    code: str
    ends: frozenset[Verdict] = field(default=FAILS)
    program: bool = False
    cpu_s: float = 10.0
    costly: bool = False


_CALL = """import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def f():
    return {secret} if libc.syscall({call}) >= 0 else 0
"""


def call(number_and_arguments: str) -> Attack:
    """A raw system call of x86_64, which must fail."""
    return Attack(code=_CALL.format(secret=SECRET, call=number_and_arguments))


def does(statement: str) -> Attack:
    """Statements after which the answer knows the secret, unless they raise."""
    lines = "\n".join(f"    {line}" for line in statement.splitlines())
    return Attack(
        code=f"import ctypes, fcntl, glob, mmap, os, socket, sys\ndef f():\n{lines}\n"
        f"    return {SECRET}"
    )


def finds(expression: str) -> Attack:
    """An expression that is true if something was found that should not be there."""
    return Attack(
        code=f"import ctypes, fcntl, gc, glob, os, stat, sys\ndef f():\n"
        f"    return {SECRET} if ({expression}) else 0"
    )
