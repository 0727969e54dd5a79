"""A clock that is wrong: the wall clock of a process that was started under libfaketime.

A running process's clock cannot be changed from outside. One that has libfaketime preloaded,
with `FAKETIME_NO_CACHE=1` and `FAKETIME_DONT_FAKE_MONOTONIC=1`, reads its offset from the file
in `FAKETIME_TIMESTAMP_FILE` at every look at the clock; `Skew` writes that file.
"""

from pathlib import Path

from millrace_tools.chaos.faults.fault_action import FaultAction

FILE = "FAKETIME_TIMESTAMP_FILE"
_NONE = "+0"


class Skew(FaultAction):
    """An offset of the wall clock, in seconds."""

    def begin(self) -> None:
        """Set the clock wrong.

        Raises:
            OSError: the process has no libfaketime, its clock is wrong already, or its
                environment cannot be read.
        """
        pid = self.order["processes"][0][0]
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        files = [one.partition(b"=")[2] for one in variables if one.startswith(f"{FILE}=".encode())]
        if not files or not any(one.startswith(b"LD_PRELOAD=") for one in variables):
            raise OSError(f"process {pid} runs without libfaketime: see docs/chaos.md")
        self._file = Path(files[0].decode())
        offset = self._file.read_text(encoding="ascii").strip() if self._file.exists() else _NONE
        if offset != _NONE:
            raise OSError(f"its clock is wrong already: {self._file} holds {offset}, not {_NONE}")
        self._file.write_text(f"{self.order['by']:+g}\n", encoding="ascii")

    def end(self) -> None:
        """Set it right."""
        self._file.write_text(f"{_NONE}\n", encoding="ascii")
