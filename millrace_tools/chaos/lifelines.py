"""From each keeper of a fault to the command: a fault lasts no longer than its connection.

A connection ends with the process that has it, whatever ends that, so nobody need notice the
command's death for the faults to be undone: neither Ray, parts of which may be standing still,
nor the hand on a node that is cut off.
"""

import asyncio
from contextlib import suppress

_UNDO_S = 20.0


class Lifelines:
    """The command's ends.

    Args:
        undo_s: how long the undoing of all faults may take.
    """

    def __init__(self, *, undo_s: float = _UNDO_S) -> None:
        self._undo_s = undo_s
        self._lines: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._over = False

    async def start(self, host: str) -> tuple[str, int]:
        """Listen at an address that every node reaches; returns it with a free port."""
        self._server = await asyncio.start_server(self._hold, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return host, port

    @property
    def lasting(self) -> int:
        """How many faults last."""
        return len(self._lines)

    async def cut(self) -> int:
        """Have every fault undone that lasts still, and wait for it.

        Returns:
            How many were not seen to be; each ends after its own time at the latest.
        """
        self._over = True
        self._server.close()
        for line in self._lines.values():
            with suppress(OSError):
                line.write_eof()
        if self._lines:
            await asyncio.wait(self._lines, timeout=self._undo_s)
        return self.lasting

    async def _hold(self, keeper: asyncio.StreamReader, line: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = line
        try:
            if not self._over:
                with suppress(OSError):
                    await keeper.read(1)  # nothing is said; it ends when the fault is undone
        finally:
            del self._lines[task]
            line.close()
