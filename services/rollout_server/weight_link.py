"""The receiving end of one link: a two-party Gloo group between a trainer rank and a worker."""

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


class WeightLink:
    """One open link; dropping it closes the sockets, which the sender notices at once."""

    def __init__(self, link: Link, *, worker_rank: int, host: str) -> None:
        """Meet the sender at the bus's store; blocks until it is there.

        Args:
            link: whom to meet, where, and the deadline of every operation.
            worker_rank: 0-based engine worker; it is process `1 + worker_rank` of the group.
            host: this node's address, on which the group listens.

        Raises:
            RuntimeError: the sender did not come before the deadline.
        """
        self.prefix = link.prefix
        timeout = timedelta(seconds=link.timeout_s)
        store = TCPStore(
            link.store_host,
            link.store_port,
            is_master=False,
            wait_for_workers=False,
            timeout=timeout,
        )
        # A device bound to the node's address: Gloo's default looks the host name up, which
        # on many machines is a loopback address that other nodes cannot reach.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timeout
        self._group: Any = ProcessGroupGloo(
            PrefixStore(link.prefix, store), 1 + worker_rank, link.world_size, options
        )
        self._broadcast = BroadcastOptions()
        self._broadcast.rootRank = 0
        self._broadcast.rootTensor = 0
        self._broadcast.timeout = timeout

    def receive_bucket(self, *, version: int, bucket: int, nbytes: int) -> torch.Tensor:
        """Receive one bucket's shards from this link's rank.

        Args:
            version: policy version that must be announced.
            bucket: index of the bucket that must come next.
            nbytes: its size by the manifest; 0 means that only the header comes.

        Returns:
            uint8 tensor of `nbytes` bytes, fresh for every bucket.

        Raises:
            ValueError: the header says something else than the manifest.
            RuntimeError: the sender is gone or missed the deadline.
        """
        header = torch.empty(HEADER_FIELDS, dtype=torch.int64)
        self._receive(header)
        expected = [HEADER_MAGIC, version, bucket, nbytes]
        if header.tolist() != expected:
            raise ValueError(f"bucket header is {header.tolist()}, expected {expected}")
        payload = torch.empty(nbytes, dtype=torch.uint8)
        if nbytes:
            self._receive(payload)
        return payload

    def _receive(self, tensor: torch.Tensor) -> None:
        self._group.broadcast([tensor], self._broadcast).wait()
