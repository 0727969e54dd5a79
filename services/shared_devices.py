"""Devices that an engine and ranks of the trainer use in turn, as locked files on their node.

The weight bus says whose turn it is; the lock holds whatever the bus knows: an engine that is
still starting, or one whose process does not answer, keeps its device. The kernel unlocks a file
when the last process ends that has it open from before a fork, so no device counts as free while a
child of a dead process still has memory there.
"""

import asyncio
import fcntl
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import ray

from services.protocol.errors import NotReady

_LOOK_S = 0.05
_MOST = 1024


class SharedDevices:
    """Some devices of this node, of which others may have the same ones open.

    Attributes:
        names: of the devices.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        """Open the locks of devices; nothing is locked yet."""
        self.names = tuple(names)
        self._files = [_open(folder / f"{_plain(name)}.lock") for name in self.names]
        self._seats: list[int] = []

    @classmethod
    def claim(cls, count: int, folder: Path) -> "SharedDevices":
        """So many devices that no other engine of this node has, where devices have no names of
        their own: shares of the node's CPUs. They are this process's until it ends.

        Raises:
            NotReady: all are taken.
        """
        names, seats = list[str](), list[int]()
        for number in range(_MOST):
            seat = _open(folder / f"cpu-{number}.engine")
            if len(names) < count and _try_lock(seat):
                names.append(f"cpu-{number}")
                seats.append(seat)
            else:
                os.close(seat)
            if len(names) == count:
                found = cls(names, folder)
                found._seats = seats
                return found
        raise NotReady(f"all {_MOST} shares of this node's CPUs are taken")

    async def take(self, timeout_s: float, *, waiting: Callable[[], None] = lambda: None) -> None:
        """Lock all devices; those that this process has locked stay so.

        Args:
            timeout_s: longest wait.
            waiting: called again and again while it waits.

        Raises:
            NotReady: another process has one for so long.
        """
        for name, file in zip(self.names, self._files, strict=True):
            try:
                async with asyncio.timeout(timeout_s):
                    while not _try_lock(file):
                        waiting()
                        await asyncio.sleep(_LOOK_S)
            except TimeoutError:
                raise NotReady(
                    f"another process has used device {name} for {timeout_s:g} s"
                ) from None

    def release(self) -> None:
        """Unlock all devices, also for child processes that got them from this one."""
        for file in self._files:
            fcntl.flock(file, fcntl.LOCK_UN)


def lock_folder() -> Path:
    """The folder of the locks on this node: in that of Ray's session, with which it goes."""
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir()) / context.get_session_name() / "shared_devices"


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)
