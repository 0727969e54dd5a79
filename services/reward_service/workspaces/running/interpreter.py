"""The kept interpreter of a workspace, seen from the service."""

import asyncio
import json
import os
import socket
from typing import Any

from pydantic import Field, ValidationError

from services.protocol.reward.workspaces import Picture
from services.protocol.strict import StrictModel
from services.reward_service.off_loop import off_loop
from services.reward_service.workspaces.running.output import Output

_LENGTH_BYTES = 4


class CellReport(StrictModel):
    """What the interpreter says of a cell: data of the workspace, to be shown and not believed."""

    cell: int
    result: str | None = None
    traceback: str | None = None
    pictures: list[Picture] = Field(default_factory=list)


class Interpreter:
    """The channel to it, and its output."""

    def __init__(self, max_report: int) -> None:
        self.output = Output()
        self._max_report = max_report
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.setblocking(False)
        self._nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._cells = 0

    @property
    def descriptors(self) -> list[int]:
        """For the process that becomes it."""
        return [self._nothing, *self.output.writers, self._theirs.fileno()]

    def close_theirs(self) -> None:
        """Leave the channel and the pipes to the process."""
        self.output.close_writers()
        self._theirs.close()

    async def run(self, code: str, max_result: int, max_pictures: int) -> CellReport | None:
        """Send a cell and wait for its report; None if what came is none."""
        self._cells += 1
        cell = {
            "cell": self._cells,
            "code": code,
            "max_result": max_result,
            "max_pictures": max_pictures,
        }
        content = json.dumps(cell).encode()
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._ours, len(content).to_bytes(_LENGTH_BYTES, "big"))
            await loop.sock_sendall(self._ours, content)
            size = int.from_bytes(await self._receive(_LENGTH_BYTES), "big")
            if not 0 < size <= self._max_report:
                return None
            report = await off_loop(size, _parsed, await self._receive(size))
        except (OSError, EOFError):
            return None
        return report if report is not None and report.cell == self._cells else None

    async def _receive(self, size: int) -> bytes:
        content = bytearray()
        loop = asyncio.get_running_loop()
        while len(content) < size:
            part = await loop.sock_recv(self._ours, min(size - len(content), 1 << 16))
            if not part:
                raise EOFError
            content += part
        return bytes(content)

    def close(self) -> None:
        """Give back all descriptors; safe to call again."""
        self.output.close()
        self._ours.close()
        self._theirs.close()
        if self._nothing >= 0:
            os.close(self._nothing)
            self._nothing = -1


def _parsed(content: bytes) -> CellReport | None:
    try:
        found: Any = json.loads(content)
        return CellReport.model_validate(_as_utf8(found))
    except (ValueError, RecursionError, ValidationError):
        return None


def _as_utf8(found: Any) -> Any:
    """Texts of a report as UTF-8 can hold them."""
    if isinstance(found, dict):
        for name in ("result", "traceback"):
            if isinstance(text := found.get(name), str):
                found[name] = text.encode("utf-8", "backslashreplace").decode()
    return found
