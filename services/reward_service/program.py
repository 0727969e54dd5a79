"""One answer's code, ready to be run in a seat."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from services.protocol.code_tests import Limits
from services.reward_service.compiler import Binary
from services.reward_service.execution import Execution
from services.reward_service.jailed.codec import encode


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
        return b"" if self.binary is not None else _payload({"source": self.source})

    def calls(self, entry_point: str, calls: list[list[object]], limits: Limits) -> Execution:
        """Calls of one function in one process.

        Raises:
            NoText: an argument is not plain data.
        """
        texts = [encode(arguments) for arguments in calls]
        if self.binary is not None:
            return self._execution(b"", "".join(f"{text}\n" for text in texts).encode(), limits)
        order = {"source": self.source, "entry_point": entry_point, "calls": texts}
        return self._execution(_payload(order), b"", limits)

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


def _payload(order: Mapping[str, object]) -> bytes:
    return json.dumps(order).encode("ascii")
