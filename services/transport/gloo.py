"""Both ends of a link: a Gloo process group of one sender and one replica's workers.

Bytes go over the wire, or, where the receivers can map the sender's memory, only the place at which
they lie.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    ProcessGroupGloo,
)

from services.protocol.weights.place import Place
from services.protocol.weights.weight_bus import Link, Transport
from services.transport.bucket import (
    FIELDS,
    MAGIC,
    NO_BASE,
    NOT_YET,
    BucketSource,
    Encoded,
    Header,
    Kind,
)
from services.transport.rendezvous import Rendezvous, connect, disconnect

_RECEIVER = 1
"""The member that asks; others receive the same."""


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
            address: this node's address, unless the link names an interface. Gloo's default
                looks the host name up, which fails on some machines and on others finds an
                address that no other node can reach.
            member: 0 for the sender, `1 + i` for engine worker i.
        """
        self.link = link
        self._address, self._member = address, member
        self._timeout = timedelta(seconds=link.timeout_s)
        self._group: Any = None  # a ProcessGroupGloo, whose methods torch's stubs do not know
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def open(self) -> None:
        """Meet the other members at the bus's store; blocks until all are there.

        Raises:
            LinkBroken: they did not all arrive in time.
        """
        started, client = time.monotonic(), None
        try:
            host, port = self.link.store_host, self.link.store_port
            client = connect(host, port, self.link.timeout_s)
            self._group = ProcessGroupGloo(
                Rendezvous(client, self.link.prefix, self.link.timeout_s),
                self._member,
                self.link.world_size,
                gloo_options(self._address, self._timeout, self.link.interface),
            )
        except RuntimeError as error:
            if client is not None:
                disconnect(client)  # it may be what failed
            waited = time.monotonic() - started
            raise LinkBroken(f"not met after {waited:.1f} s: {self._reason(error)}") from error

    def send(
        self,
        source: BucketSource,
        base: int | None,
        *,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> int:
        """Send the buckets that the receiver lacks: a header, then the bytes unless there are none.

        Over shared memory only one header is sent, which says where all of them lie.

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
            first = self._asked_for(source.version)
            if self.link.transport is Transport.SHARED_MEMORY:
                self._send_place(source, first)
                return 0
            for bucket in range(first, source.bucket_count, self.link.stripes):
                encoded = NOT_YET
                while encoded.kind is Kind.WAIT:
                    if cancelled():
                        raise LinkBroken("dropped")
                    encoded = source.encoded(bucket, base)
                    sent += self._send_bucket(source.version, bucket, encoded)
        except RuntimeError as error:
            self.close()
            if isinstance(error, LinkBroken):
                raise
            raise LinkBroken(f"after {sent} bytes: {self._reason(error)}") from error
        return sent

    def ask(self, version: int, bucket: int) -> None:
        """Ask the sender for a version from this bucket on, in the steps of the link's stripes.

        Raises:
            RuntimeError: the sender is gone or missed the deadline.
        """
        self._pass(torch.tensor([MAGIC, version, bucket]), _RECEIVER)

    def _asked_for(self, version: int) -> int:
        """The first bucket that the receiver lacks of the version."""
        if self.link.world_size == 1:
            return self.link.stripe
        numbers = torch.empty(3, dtype=torch.int64)
        self._pass(numbers, _RECEIVER)
        magic, asked, bucket = numbers.tolist()
        if [magic, asked] != [MAGIC, version]:
            raise LinkBroken(f"version {asked} was asked for, and {version} is to be sent")
        return int(bucket)

    def receive_bucket(self, *, version: int, bucket: int, nbytes: int) -> Encoded:
        """Receive one bucket of this link's sender, or word that it has not come there yet.

        The payload is the link's memory and valid until the next bucket: fresh pages for every
        bucket would cost more than the bytes' way over the wire.

        Args:
            version: policy version that must be announced.
            bucket: index of the bucket that must come next.
            nbytes: its size by the manifest.

        Raises:
            ValueError: the header says something else than the manifest.
            RuntimeError: the sender is gone or missed the deadline.
        """
        header = self._receive_header(version, bucket, nbytes)
        if header.kind is Kind.PLACED:
            raise ValueError(f"bucket {bucket} was to follow, and only its place did")
        payload = self._receive(header.size)
        return Encoded(kind=header.kind, base=header.base, payload=payload)

    def receive_place(self, version: int) -> Place:
        """Ask the sender of shared memory where its bytes of a version lie.

        Raises:
            ValueError: it does not say.
            RuntimeError: the sender is gone or missed the deadline.
        """
        self.ask(version, self.link.stripe)
        header = self._receive_header(version, self.link.stripe, 0)
        if header.place is None:
            raise ValueError(f"no place of version {version} came")
        return header.place

    def close(self) -> None:
        """Drop the group; its destructor closes the sockets."""
        self._group = None

    def _send_bucket(self, version: int, bucket: int, encoded: Encoded) -> int:
        size = encoded.payload.numel()
        header = Header(kind=encoded.kind, base=encoded.base, size=size)
        self._pass(header.pack(version, bucket))
        if size:
            self._pass_bytes(encoded.payload)
        return size

    def _send_place(self, source: BucketSource, bucket: int) -> None:
        if source.place is None:
            raise LinkBroken("the bytes lie in no memory that others can map")
        header = Header(kind=Kind.PLACED, base=NO_BASE, size=0, place=source.place)
        self._pass(header.pack(source.version, bucket))

    def _receive_header(self, version: int, bucket: int, nbytes: int) -> Header:
        numbers = torch.empty(FIELDS, dtype=torch.int64)
        self._pass(numbers)
        return Header.unpack(numbers, version=version, bucket=bucket, nbytes=nbytes)

    def _receive(self, size: int) -> torch.Tensor:
        if size > self._buffer.numel():
            self._buffer = torch.empty(size, dtype=torch.uint8)
        payload = self._buffer[:size]
        if size:
            self._pass_bytes(payload)
        return payload

    def _pass_bytes(self, payload: torch.Tensor) -> None:
        """Pass a payload (uint8, on the host); the only thing that other transports change."""
        self._pass(payload)

    def _reason(self, error: RuntimeError) -> str:
        """Why an operation failed, in one line."""
        return str(error).strip().split("\n", 1)[0][:200]

    def _pass(self, tensor: torch.Tensor, source: int = 0) -> None:
        if self._group is None:
            raise LinkBroken("closed")
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        options.timeout = self._timeout
        self._group.broadcast([tensor], options).wait()


def gloo_options(address: str, timeout: timedelta, interface: str = "") -> Any:
    """Options that bind Gloo to `address`, or to that of an interface of this node.

    The options class is not public, but it is the only way to choose the address of one
    group.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    given = {"interface": interface} if interface else {"hostname": address}
    options._devices = [ProcessGroupGloo.create_device(**given)]
    options._timeout = timeout
    return options
