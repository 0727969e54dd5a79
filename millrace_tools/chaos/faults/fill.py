"""A full file system: nothing more can be written where the run writes."""

import os
import shutil
from pathlib import Path

from millrace_tools.chaos.faults.fault_action import FaultAction

_NAME = "chaos-fill"
_MIB = 1 << 20


class Fill(FaultAction):
    """One file that takes all free space, removed at the end.

    Only where at most `mib` MiB are free: a host's own disk is never filled. Give the run a
    bounded file system of its own, such as a tmpfs with a size.
    """

    def begin(self) -> None:
        """Write until the file system is full.

        Raises:
            OSError: too much is free, or the folder cannot be written.
        """
        folder, max_mib = Path(self.order["folder"]), int(self.order["mib"])
        free_mib = shutil.disk_usage(folder).free / _MIB
        if free_mib > max_mib:
            raise OSError(
                f"{folder} has {free_mib:.0f} MiB free and `mib` is {max_mib}: "
                "give the run a small file system of its own, such as a tmpfs"
            )
        block = bytes(_MIB)
        self._file = folder / _NAME
        with self._file.open("wb", buffering=0) as file:
            for size in (_MIB, 4096, 1):  # to the last byte
                try:
                    for _ in range(max_mib * _MIB // size):
                        if file.write(block[:size]) < size:
                            break
                    os.fsync(file.fileno())
                except OSError:
                    continue  # it is full, but a smaller piece may fit

    def end(self) -> None:
        """Free the space."""
        self._file.unlink(missing_ok=True)
