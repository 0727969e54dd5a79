"""How processes of one kind are confined and started: answers in Python, programs, languages."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from services.reward_service.jailed import confine


class Kind(NamedTuple):
    """Made once, while the slot may still open the files that it stands for.

    Attributes:
        ruleset: of Landlock. It lets a process execute the interpreter and no other file.
        interpreter: descriptor of what is executed; -1 to execute the program itself.
        seccomp: the filter's program.
        own_pid_at: where that has the process's id.
    """

    ruleset: int
    interpreter: int
    seccomp: bytes
    own_pid_at: int

    def execute(self, program: int, arguments: Sequence[str], environment: Sequence[str]) -> None:
        """Become the interpreter, or the program behind a descriptor.

        Raises:
            OSError: the kernel cannot run it.
        """
        started = program if self.interpreter < 0 else self.interpreter
        confine.execute(started, arguments, environment)


def prepared(settings: Iterable[dict[str, Any]]) -> tuple[int, list[Kind]]:
    """The kernel's Landlock ABI, and the kinds of the settings, by their numbers.

    Raises:
        OSError: Landlock is missing, or an interpreter.
    """
    abi, kinds = 0, list[Kind]()
    for facts in settings:
        abi, ruleset = confine.create_ruleset(facts["paths"])
        path, (program, own_pid_at) = facts["interpreter"], facts["filter"]
        interpreter = os.open(path, os.O_PATH | os.O_CLOEXEC) if path else -1
        kinds.append(Kind(ruleset, interpreter, bytes.fromhex(program), own_pid_at))
    return abi, kinds
