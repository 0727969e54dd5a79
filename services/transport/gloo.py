"""Both ends of a link over Gloo: a process group of one sender and one replica's workers."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    ProcessGroupGloo,
)

from services.protocol.weight_bus import Link
from services.transport.bucket import (
    HEADER_FIELDS,
    HEADER_MAGIC,
    BucketSource,
    Encoded,
    Kind,
)
from services.transport.meeting import MeetingPlace, connect, disconnect


class LinkBroken(RuntimeError):
    """The link cannot be used any more; the bus gives a new one with a new prefix."""


class GlooLink:
    """One end of an open link; used by one thread.

    A blocked Gloo call cannot be interrupted: it ends at its deadline. Dropping the group
    closes its sockets, which the other end notices at once.
    """

    def __init__(self, link: Link, address: str, member: int = 0) -> None:
        """Describe the end; `open` connects it.

        Args:
            link: whom to meet, where, and the deadline of every operation.
            address: this node's address. Gloo's default looks the host name up, which
                fails on some machines and on others finds an address that no other node
                can reach.
            member: 0 for the sender, `1 + i` for engine worker i.
        """
        self.link = link
        self._address, self._member = address, member
        self._timeout = timedelta(seconds=link.timeout_s)
        self._broadcast = BroadcastOptions()
        self._broadcast.rootRank = 0
        self._broadcast.rootTensor = 0
        self._broadcast.timeout = self._timeout
        self._group: Any = None  # a ProcessGroupGloo, whose methods torch's stubs do not know
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def open(self) -> None:
        """Meet the other members at the bus's store; blocks until all are there.

        Raises:
            LinkBroken: they did not all arrive in time.
        """
        started, client = time.monotonic(), None
        try:
            client = connect(self.link.store_host, self.link.store_port)
            self._group = ProcessGroupGloo(
                MeetingPlace(client, self.link.prefix, self.link.timeout_s),
                self._member,
                self.link.world_size,
                gloo_options(self._address, self._timeout),
            )
        except RuntimeError as error:
            if client is not None:
                disconnect(client)  # it may be what failed
            waited = time.monotonic() - started
            raise LinkBroken(f"not met after {waited:.1f} s: {_first_line(error)}") from error

    def send(
        self,
        source: BucketSource,
        base: int | None,
        *,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Send every bucket: a header, then the bytes unless there are none.

        Args:
            source: what to send.
            base: version that the receivers hold; None: none that is known.
            cancelled: asked before every bucket.

        Returns:
            Payload bytes sent.

        Raises:
            LinkBroken: a receiver is gone or silent, or the send was called off.
        """
        sent = 0
        try:
            for bucket in range(source.bucket_count):
                if cancelled():
                    raise LinkBroken("dropped")
                sent += self._send_bucket(source.version, bucket, source.encoded(bucket, base))
        except RuntimeError as error:
            self.close()
            if isinstance(error, LinkBroken):
                raise
            raise LinkBroken(f"after {sent} bytes: {_first_line(error)}") from error
        return sent

    def receive_bucket(self, *, version: int, bucket: int, nbytes: int) -> Encoded:
        """Receive one bucket of this link's sender.

        The payload is the link's own memory and valid until the next call: fresh pages for
        every bucket would cost more than the bytes' way over the wire.

        Args:
            version: policy version that must be announced.
            bucket: index of the bucket that must come next.
            nbytes: its size by the manifest.

        Raises:
            ValueError: the header says something else than the manifest.
            RuntimeError: the sender is gone or missed the deadline.
        """
        header = torch.empty(HEADER_FIELDS, dtype=torch.int64)
        self._pass(header)
        magic, announced, index, kind, base, size = header.tolist()
        expected = HEADER_MAGIC, version, bucket
        fits = size == nbytes if kind == Kind.FULL else size < max(nbytes, 1)
        if (magic, announced, index) != expected or kind not in tuple(Kind) or not fits:
            raise ValueError(
                f"bucket header is {header.tolist()}, expected {list(expected)} and a kind and "
                f"size that fit {nbytes} bytes"
            )
        if size > self._buffer.numel():
            self._buffer = torch.empty(size, dtype=torch.uint8)
        payload = self._buffer[:size]
        if size:
            self._pass(payload)
        return Encoded(kind=Kind(kind), base=base, payload=payload)

    def close(self) -> None:
        """Drop the group; its destructor closes the sockets."""
        self._group = None

    def _send_bucket(self, version: int, bucket: int, encoded: Encoded) -> int:
        size = encoded.payload.numel()
        header = [HEADER_MAGIC, version, bucket, int(encoded.kind), encoded.base, size]
        self._pass(torch.tensor(header))
        if size:
            self._pass(encoded.payload)
        return size

    def _pass(self, tensor: torch.Tensor) -> None:
        if self._group is None:
            raise LinkBroken("closed")
        self._group.broadcast([tensor], self._broadcast).wait()


def gloo_options(address: str, timeout: timedelta) -> Any:
    """Options that bind Gloo to `address`.

    The options class is not public, but it is the only way to choose the address of one
    group.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    return options


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
