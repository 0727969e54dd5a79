"""A clock that is wrong: the wall clock of a process that was started under libfaketime.

A running process's clock cannot be changed from outside. One that has libfaketime preloaded,
with `FAKETIME_NO_CACHE=1` and `FAKETIME_DONT_FAKE_MONOTONIC=1`, reads its offset from the file
in `FAKETIME_TIMESTAMP_FILE` at every look at the clock; that file is what is written here.
"""

from pathlib import Path
from typing import Any

FILE = "FAKETIME_TIMESTAMP_FILE"
_NONE = "+0"


class Skew:
    """An offset of the wall clock, in seconds."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._pid, self._by = order["lives"][0][0], order["by"]
        self._file = Path()

    def begin(self) -> None:
        """Set the clock wrong.

        Raises:
            OSError: the process has no libfaketime, its clock is wrong already, or it may not be
                looked into.
        """
        variables = Path(f"/proc/{self._pid}/environ").read_bytes().split(b"\0")
        files = [one.partition(b"=")[2] for one in variables if one.startswith(f"{FILE}=".encode())]
        if not files or not any(one.startswith(b"LD_PRELOAD=") for one in variables):
            raise OSError(f"process {self._pid} runs without libfaketime: see docs/chaos.md")
        self._file = Path(files[0].decode())
        offset = self._file.read_text(encoding="ascii").strip() if self._file.exists() else _NONE
        if offset != _NONE:
            raise OSError(f"its clock is wrong already: {self._file} holds {offset}, not {_NONE}")
        self._file.write_text(f"{self._by:+g}\n", encoding="ascii")

    def tick(self) -> float:
        """Nothing recurs."""
        return 3600.0

    def end(self) -> None:
        """Set it right."""
        self._file.write_text(f"{_NONE}\n", encoding="ascii")
