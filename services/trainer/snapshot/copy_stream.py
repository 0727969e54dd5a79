"""Copies of shards from a device to host memory, beside the work of the training thread."""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from services.transport.pinned_memory import Buffer, pin

PIECE = 1 << 24
"""Elements that are converted on the device at a time: 32 MiB of bfloat16."""


class CopyStream:
    """The stream on which a rank's shards leave its device; nothing is asynchronous without one.

    What is converted lies in memory of the stream's own, which the next piece takes again in the
    order of the stream: a snapshot takes a piece or two of the device, however large the model is.

    Args:
        on_device: the shards are on the current GPU, and not in host memory.
    """

    def __init__(self, *, on_device: bool) -> None:
        self._stream = torch.cuda.Stream() if on_device else None
        self._read: torch.cuda.Event | None = None
        self._pinned: weakref.WeakSet[Buffer] = weakref.WeakSet()

    def reading(self, buffer: Buffer, *, pins: bool = True) -> AbstractContextManager[object]:
        """Where shards are read: after the changes that were asked for before.

        Args:
            buffer: where they are copied to.
            pins: register all of it with CUDA, which takes memory for what nobody has written.
        """
        if self._stream is None:
            return contextlib.nullcontext()
        if pins and buffer not in self._pinned:
            pin(buffer)
            self._pinned.add(buffer)
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def copy(self, shard: Tensor, targets: Sequence[Tensor]) -> None:
        """Convert a shard into `targets`, parts of the buffer with as many elements together."""
        parts = shard.reshape(-1).split([target.numel() for target in targets])
        for part, target in zip(parts, targets, strict=True):
            for piece, into in zip(part.split(PIECE), target.split(PIECE), strict=True):
                if piece.is_cuda:
                    into.copy_(piece.to(into.dtype), non_blocking=self._stream is not None)
                else:
                    into.copy_(piece)

    def copied(self) -> Callable[[], object]:
        """A wait of any thread until the device is done with the copies so far."""
        if self._stream is None:
            return _done
        self._read = torch.cuda.Event(blocking=True)
        self._read.record(self._stream)
        return self._read.synchronize

    def let_weights_change(self) -> None:
        """Let what is asked of the device from now on wait until all weights are read."""
        if self._read is not None:
            torch.cuda.current_stream().wait_event(self._read)


def _done() -> None:
    """Copies within host memory have ended when they are made."""
