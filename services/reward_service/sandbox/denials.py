"""Which layer of the jail stopped an answer, as far as it can be known from outside."""

import re
import signal

from services.reward_service.sandbox.execution import Outcome

_REFUSED = re.compile(rb"(?m)^!?PermissionError: \[Errno (\d+)\]")
_TAIL_BYTES = 1000
_BY_ERRNO = {1: "seccomp", 13: "landlock"}
"""The filter answers a call that it does not allow with EPERM, Landlock a path with EACCES."""


def denied_by(outcome: Outcome) -> str | None:
    """The layer that ended a process, None if none is seen to have.

    `cpu` and `wall` are the slot's clocks, `output` the limit on files, `seccomp` and `landlock`
    the filters. The filters answer a denied call with an error: it shows only where a Python answer
    let it end the program, by what the answer itself wrote. So this counts, and judges nothing.
    """
    if outcome.killed is not None:
        return outcome.killed
    if outcome.exit_code == -signal.SIGXFSZ:
        return "output"
    if outcome.exit_code == -signal.SIGSYS:
        return "seccomp"
    if outcome.exit_code == 0:
        return None
    said = _REFUSED.search(outcome.report[-_TAIL_BYTES:] + b"\n" + outcome.stderr[-_TAIL_BYTES:])
    return None if said is None else _BY_ERRNO.get(int(said[1]))
