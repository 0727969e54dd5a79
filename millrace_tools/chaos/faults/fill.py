"""A file system without room: nothing more can be written where the run writes."""

import os
import shutil
from pathlib import Path
from typing import Any

_NAME = "chaos-fill"
_MIB = 1 << 20


class Fill:
    """One file that takes what room there is, removed at the end.

    Only where at most so many MiB are free: a host's own disk is never filled. Give the run a
    bounded file system of its own, such as a tmpfs with a size.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self._file = Path(order["folder"]) / _NAME
        self._most_mib = int(order["mib"])

    def begin(self) -> None:
        """Write until there is no room.

        Raises:
            OSError: too much room is free, or the folder cannot be written.
        """
        free_mib = shutil.disk_usage(self._file.parent).free / _MIB
        if free_mib > self._most_mib:
            raise OSError(
                f"{self._file.parent} has {free_mib:.0f} MiB free and `mib` is {self._most_mib}: "
                "give the run a small file system of its own, such as a tmpfs"
            )
        block = bytes(_MIB)
        with self._file.open("wb", buffering=0) as file:
            for size in (_MIB, 4096, 1):  # to the last byte
                try:
                    for _ in range(self._most_mib * _MIB // size):
                        if file.write(block[:size]) < size:
                            break
                    os.fsync(file.fileno())
                except OSError:
                    continue  # no room: with a smaller piece there may be some

    def tick(self) -> float:
        """Nothing recurs."""
        return 3600.0

    def end(self) -> None:
        """Give the room back."""
        self._file.unlink(missing_ok=True)
