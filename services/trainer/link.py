"""The sending end of a link: one process group from this trainer rank to one replica."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from services.protocol.weight_bus import Link
from services.protocol.weights import HEADER_FIELDS, HEADER_MAGIC
from services.trainer.snapshot import Snapshot


class LinkBroken(RuntimeError):
    """The link cannot be used any more; the bus gives a new one with a new prefix."""


class SendingLink:
    """Opens a link and sends snapshots over it; used by one thread.

    A blocked Gloo call cannot be interrupted: it ends at its deadline. After any error the
    group is dropped, which closes its sockets and tells the receiver at once.
    """

    def __init__(self, link: Link, address: str) -> None:
        self.link = link
        self._address = address
        self._group: Any = None  # a ProcessGroupGloo, whose methods torch's stubs do not know
        self._timeout = timedelta(seconds=link.timeout_s)

    def open(self) -> None:
        """Meet the replica's workers at the bus's store.

        Raises:
            LinkBroken: they did not all arrive in time.
        """
        started = time.monotonic()
        try:
            store = TCPStore(
                self.link.store_host,
                self.link.store_port,
                is_master=False,
                timeout=self._timeout,
                wait_for_workers=False,
            )
            prefixed = PrefixStore(self.link.prefix, store)
            self._group = ProcessGroupGloo(
                prefixed, 0, self.link.world_size, gloo_options(self._address, self._timeout)
            )
        except RuntimeError as error:
            waited = time.monotonic() - started
            raise LinkBroken(f"not met after {waited:.1f} s: {_first_line(error)}") from error

    def send(self, snapshot: Snapshot, *, cancelled: Callable[[], bool] = lambda: False) -> int:
        """Send every bucket: a header, then the bytes unless there are none.

        Returns:
            Payload bytes sent.

        Raises:
            LinkBroken: the receiver is gone or silent, or the send was called off.
        """
        sent = 0
        try:
            for index, bucket in enumerate(snapshot.buckets):
                if cancelled():
                    raise LinkBroken("dropped")
                size = bucket.numel()
                self._broadcast(torch.tensor([HEADER_MAGIC, snapshot.version, index, size]))
                if size:
                    self._broadcast(bucket)
                sent += size
        except RuntimeError as error:
            self.close()
            if isinstance(error, LinkBroken):
                raise
            raise LinkBroken(f"after {sent} bytes: {_first_line(error)}") from error
        return sent

    def close(self) -> None:
        """Drop the group; its destructor closes the sockets."""
        self._group = None

    def _broadcast(self, tensor: torch.Tensor) -> None:
        if self._group is None:
            raise LinkBroken("closed")
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = self._timeout
        self._group.broadcast([tensor], options).wait()


def gloo_options(address: str, timeout: timedelta) -> Any:
    """Options that bind Gloo to `address`.

    The options class is not public, but it is the only way to choose the address of one
    group; the default looks the hostname up, which fails or finds another interface.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    return options


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


assert HEADER_FIELDS == 4, "send() writes four header fields"
