"""Attacks as programs of a workspace: each prints a mark if it got through."""

from dataclasses import dataclass

from tests.redteam.attack import SECRET, Attack
from tests.redteam.on_the_machine import FILES, SYSTEM_CALLS

GOT_THROUGH = "attack-got-through"
_SPLIT = "'attack-got' + '-through'"
"""So that a traceback, which shows the source, has no mark."""

ALLOWED = {
    "clone a process": "a shell makes processes",
    "clone sharing memory": "likewise: how libc starts a program",
    "raw fork": "likewise",
    "raw vfork": "likewise",
    "execve": "a shell starts programs",
    "execveat of an opened program": "likewise, from descriptors too",
    "socketpair": "programs talk with their own children",
    "process group": "a shell makes process groups for jobs",
    "signal the parent's thread": "its parent may be a process of its own; see on_the_agent.py",
    "queue a signal to the parent": "likewise",
    "signal a thread group": "likewise",
    "process group of the parent": "its parent is in the same workspace",
    "session of the parent": "likewise",
    "processors of the parent": "likewise",
    "scheduler of the parent": "likewise",
    "priority of the parent": "likewise",
    "limits of the parent": "reading alone; see on_the_agent.py for changing them",
    "processor time of the parent": "likewise",
    "is there a clock of the parent": "likewise",
    "sleep by the clock of the parent": "likewise",
    "list temporary files": "its own",
    "make a pipe file": "in its own folder",
    "point elsewhere": "a link in its own folder, which leads nowhere it may go",
    "a socket or a pipe left open": "its output is a pipe; see on_the_agent.py",
    "file without a name": "in its own folder",
    "lock a file for a neighbour to see": "databases lock files; see DOCUMENTED in between_two.py",
    "canary in the environment": "its own name is in it; see ENVIRONMENT",
    "canary in the first environment": "likewise",
    "read installed packages": "packages of the system's Python are there to be used",
}
"""Attacks of the graders' suite that are no attacks here, and why."""


def as_program(attack: Attack) -> str:
    """The same attack as a program that says whether it got through."""
    return f"{attack.code}\nif f() == {SECRET}:\n    print({_SPLIT})\n"


def does(statements: str) -> str:
    """Statements after which an attack has got through, unless they raise."""
    return f"{_IMPORTS}\n{statements}\nprint({_SPLIT})\n"


def finds(expression: str) -> str:
    """An expression that is true if something was found that should not be there."""
    return f"{_IMPORTS}\nif {expression}:\n    print({_SPLIT})\n"


_IMPORTS = (
    "import ctypes, fcntl, glob, json, mmap, os, pathlib, signal, socket, struct, sys, time\n"
    "libc = ctypes.CDLL(None, use_errno=True)"
)

ENVIRONMENT = {
    "the service's environment": finds("'canary-7f3a' in ''.join(os.environ.values())"),
    "the service's environment from the stack": finds(
        "b'canary-7f3a' in b''.join(iter(lambda p=ctypes.POINTER(ctypes.c_char_p).in_dll("
        "ctypes.CDLL(None), 'environ'), i=iter(range(99)): p[next(i)] or b'', b''))"
    ),
}

ON_THE_MACHINE = ENVIRONMENT | {
    name: as_program(attack)
    for name, attack in (SYSTEM_CALLS | FILES).items()
    if name not in ALLOWED
}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What an attack said in a workspace.

    Attributes:
        shown: all of its output.
    """

    name: str
    way: str
    status: str
    shown: str

    @property
    def got_through(self) -> bool:
        """Whether it says so."""
        return GOT_THROUGH in self.shown

    def __str__(self) -> str:
        return f"{self.name} ({self.way}): {self.status}: {self.shown[-300:]}"
