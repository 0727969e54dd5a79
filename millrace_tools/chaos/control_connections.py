"""Connections from each fault process to the command: a fault lasts no longer than its own.

A connection ends with the process that has it, so faults are undone even if the command is
killed: neither Ray, parts of which may be frozen, nor the agent on a node that is cut off needs
to notice its death.
"""

import asyncio
from contextlib import suppress

_UNDO_S = 20.0


class ControlConnections:
    """The command's ends.

    Args:
        undo_s: timeout of undoing all faults.
    """

    def __init__(self, *, undo_s: float = _UNDO_S) -> None:
        self._undo_s = undo_s
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._closed = False

    async def start(self, host: str) -> tuple[str, int]:
        """Listen at an address that every node reaches; returns it with a free port."""
        self._server = await asyncio.start_server(self._hold, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return host, port

    @property
    def open(self) -> int:
        """Number of connections, which is that of the faults that last."""
        return len(self._writers)

    async def close(self) -> int:
        """Undo every fault that still lasts, and wait for it.

        Returns:
            Number of faults that did not end in time; each ends after its own time at the latest.
        """
        self._closed = True
        self._server.close()
        for writer in self._writers.values():
            with suppress(OSError):
                writer.write_eof()
        if self._writers:
            await asyncio.wait(self._writers, timeout=self._undo_s)
        return self.open

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._writers[task] = writer
        try:
            if not self._closed:
                with suppress(OSError):
                    await reader.read(1)  # nothing is sent; it ends when the fault is undone
        finally:
            del self._writers[task]
            writer.close()
