"""What the programs of a call write: read as it comes, kept up to a limit."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Literal

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[str, bytes], None]
_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
_READ_BYTES = 1 << 16


class Output:
    """Two pipes. `begin` starts to read them for a call, `end` takes what is left in them."""

    def __init__(self) -> None:
        self._pipes: dict[Stream, tuple[int, int]] = {}
        for stream in _STREAMS:
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self._pipes[stream] = reader, writer
        self._written = dict.fromkeys(_STREAMS, 0)
        self._kept: dict[Stream, bytearray] = {stream: bytearray() for stream in _STREAMS}
        self._left = 0
        self._on_output: OnOutput | None = None
        self._on_limit: Callable[[], None] | None = None

    @property
    def writers(self) -> list[int]:
        """The ends to hand to a process, and then to close with `close_writers`."""
        return [writer for _, writer in self._pipes.values()]

    def close_writers(self) -> None:
        """Leave the writers to the processes that got them."""
        for stream, (reader, writer) in self._pipes.items():
            if writer >= 0:
                os.close(writer)
            self._pipes[stream] = reader, -1

    def begin(self, limit: int, on_output: OnOutput | None, on_limit: Callable[[], None]) -> None:
        """Read from now on.

        Args:
            limit: bytes to keep, of both streams together.
            on_output: gets the name of the stream and what is kept of it, as it comes.
            on_limit: called once, when more comes.
        """
        self._left, self._on_output, self._on_limit = limit, on_output, on_limit
        for stream in _STREAMS:
            self._written[stream], self._kept[stream] = 0, bytearray()
        loop = asyncio.get_running_loop()
        for stream, (reader, _) in self._pipes.items():
            loop.add_reader(reader, self._read, stream)

    def end(self) -> dict[Stream, tuple[bytes, int]]:
        """Read what is there, and no more: what was kept of each stream, and how much was written.

        No process may be writing any more.
        """
        self.pause()
        for stream in self._pipes:
            while self._read(stream):
                pass
        self._on_output = self._on_limit = None
        return {stream: (bytes(self._kept[stream]), self._written[stream]) for stream in _STREAMS}

    def pause(self) -> None:
        """Stop reading."""
        for reader, _ in self._pipes.values():
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                asyncio.get_running_loop().remove_reader(reader)

    def close(self) -> None:
        """Close both pipes."""
        if not self._pipes:
            return
        self.pause()
        self.close_writers()
        for reader, _ in self._pipes.values():
            os.close(reader)
        self._pipes = {}

    def _read(self, stream: Stream) -> bool:
        """Read once; whether there may be more."""
        reader = self._pipes[stream][0]
        try:
            part = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            return False
        if not part:
            asyncio.get_running_loop().remove_reader(reader)
            return False
        self._written[stream] += len(part)
        kept = part[: self._left]
        self._left -= len(kept)
        if kept:
            self._kept[stream] += kept
            if self._on_output is not None:
                self._on_output(stream, kept)
        if len(kept) < len(part) and self._on_limit is not None:
            self._on_limit()
            self._on_limit = None
        return True
