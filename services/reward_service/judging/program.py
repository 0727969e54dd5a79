"""One answer's code, ready to be run in a seat."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from services.protocol.reward.code_tests import Limits
from services.reward_service.sandbox.compiler import Binary
from services.reward_service.sandbox.execution import Execution


@dataclass(frozen=True, kw_only=True)
class Program:
    """Python source, or a compiled program.

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
        return b"" if self.binary is not None else json_payload({"source": self.source})

    def calls(
        self, entry_point: str, calls: list[str], limits: Limits, *, as_plain: bool = False
    ) -> Execution:
        """Calls of one function in one process; arguments as texts of `jailed.codec`.

        `as_plain` is for results that are compared as Python's `==` does.
        """
        if self.binary is not None:
            return self._execution(b"", "".join(f"{text}\n" for text in calls).encode(), limits)
        order = {"source": self.source, "entry_point": entry_point}
        return self._execution(
            json_payload({**order, "calls": calls, "as_plain": as_plain}), b"", limits
        )

    def callee(self, entry_point: str, limits: Limits) -> Execution:
        """One process that answers the calls of tests in another jail."""
        order = {"source": self.source, "entry_point": entry_point, "calls": None}
        return self._execution(json_payload(order), b"", limits)

    def _execution(self, payload: bytes, stdin: bytes, limits: Limits) -> Execution:
        return Execution(
            payload=payload,
            stdin=stdin,
            limits=limits,
            wall_s=idle_limit_s(limits),
            program=None if self.binary is None else self.binary.descriptor,
        )


def idle_limit_s(limits: Limits) -> float:
    """Wall time after which a process that uses no processor time is given up."""
    return 2 * limits.cpu_s + 2.0


def json_payload(order: Mapping[str, object]) -> bytes:
    """An order for `jailed.answer`."""
    return json.dumps(order).encode("ascii")
