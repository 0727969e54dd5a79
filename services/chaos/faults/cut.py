"""A node without a network: packets to and from others are dropped, as by a dead switch."""

import subprocess
from contextlib import ExitStack
from typing import Any

_RULES = (
    ("INPUT", "!", "-i", "lo", "-j", "DROP"),
    ("OUTPUT", "!", "-o", "lo", "-j", "DROP"),
)
_MARK = ("-m", "comment", "--comment", "millrace-chaos")
_ANSWER_S = 1.0
"""The answer to who asked for it must leave the node first."""


class Cut:
    """Rules of iptables in the keeper's network namespace, which is its node's."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._is_cut = self._told = False

    def begin(self) -> None:
        """See whether rules can be set; they are after a second.

        Raises:
            OSError: no iptables, or no right to use it.
        """
        _iptables("-L", "INPUT")

    def tick(self) -> float:
        """Cut, at the second call."""
        if not self._told:
            self._told = True
            return _ANSWER_S
        if not self._is_cut:
            self._is_cut = True
            for rule in _RULES:
                _iptables("-I", rule[0], "1", *rule[1:], *_MARK)
        return 3600.0

    def end(self) -> None:
        """Heal, each direction for itself."""
        if self._is_cut:
            with ExitStack() as healing:
                for rule in _RULES:
                    healing.callback(_iptables, "-D", rule[0], *rule[1:], *_MARK)


def _iptables(*arguments: str) -> None:
    done = subprocess.run(["iptables", "-w", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"iptables: {done.stderr.strip()}")
