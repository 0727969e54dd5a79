"""A process above the first one of a jail that shares its user with other jails.

If the first process is killed, no user id and no namespace tells its programs from those of other
jails, and programs that fork are faster than a search of /proc. Landlock's scope (Linux 6.12) tells
them: the guard enters it before it forks the first process, and its signals do not leave it.
"""

import contextlib
import errno
import os
import signal

from services.reward_service.jailed import confine

_FIRST_FREE_FD = 3
_EVERYTHING = -1


def watch() -> None:
    """Fork: returns in the child. The parent ends with status 0 once all below it have ended.

    The parent kills them when its child ends.

    Raises:
        OSError: signals would leave the jail.
    """
    confine.drop_privileges(None)
    # It must outlive the service for as long as it takes to end the programs.
    confine.prctl(confine.PR_SET_PDEATHSIG, 0)
    confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError):  # what is missing is said below
        confine.restrict_signals()
    check_signals()
    first = os.fork()
    if first == 0:
        return
    os.closerange(_FIRST_FREE_FD, os.sysconf("SC_OPEN_MAX"))
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(_EVERYTHING, 0)[0] != first:
            pass
        signal_all(signal.SIGKILL)
        while True:
            os.waitpid(_EVERYTHING, 0)
    os._exit(0)


def check_signals() -> None:
    """See that signals to all processes stay in the jail.

    Raises:
        OSError: they reach the process above this one.
    """
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise OSError(
        errno.ENOTSUP,
        "signals would leave the jail: without namespaces and root it needs Linux 6.12",
    )


def signal_all(number: int) -> None:
    """Signal every process that this one may signal, itself left out; none can fork meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(_EVERYTHING, number)
