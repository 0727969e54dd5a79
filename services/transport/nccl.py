"""A link whose bytes go from GPU to GPU over NCCL, for replicas on other nodes.

Meeting, headers and the noticing of dead members stay with Gloo. NCCL itself cannot be
interrupted and does not notice: every transfer is watched, and one that misses its deadline
aborts the communicator. The link is then broken, and the bus gives a new one.

This has never run on GPUs; its logic is tested with another backend in NCCL's place.
"""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import BroadcastOptions, PrefixStore, TCPStore  # type: ignore[attr-defined]

from services.protocol.weights.weight_bus import Link
from services.transport.gloo import GlooLink, LinkBroken

_POLL_S = 0.0002

MakeGroup = Callable[[Link, int], Any]
"""Makes the process group that passes the bytes, from the link and this end's number in it."""


class NcclLink(GlooLink):
    """One end of a link between GPUs; see `GlooLink`."""

    def __init__(
        self,
        link: Link,
        address: str,
        member: int = 0,
        *,
        device: torch.device | None = None,
        make_group: MakeGroup | None = None,
    ) -> None:
        """See `GlooLink`.

        Args:
            link: see `GlooLink`.
            address: see `GlooLink`.
            member: see `GlooLink`.
            device: where bytes wait before and after the wire; this process's GPU.
            make_group: see `MakeGroup`; NCCL's.
        """
        super().__init__(link, address, member)
        self._device = device or torch.device("cuda", torch.cuda.current_device())
        self._make_group = make_group or _nccl_group
        self._carrier: Any = None
        self._on_device = torch.empty(0, dtype=torch.uint8, device=self._device)
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def open(self) -> None:
        """See `GlooLink.open`."""
        super().open()
        try:
            self._carrier = self._make_group(self.link, self._member)
        except RuntimeError as error:
            self.close()
            raise LinkBroken(f"no communicator: {error}") from error

    def close(self) -> None:
        """Abort the communicator and drop the group."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.abort()
        super().close()

    def _pass_bytes(self, payload: Tensor) -> None:
        if self._carrier is None:
            raise LinkBroken("closed")
        if payload.numel() > self._on_device.numel():
            self._on_device = torch.empty(payload.numel(), dtype=torch.uint8, device=self._device)
        carried = self._on_device[: payload.numel()]
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            if self._member == 0:
                carried.copy_(payload, non_blocking=True)
            self._watch(self._carrier.broadcast([carried], options))
            if self._member != 0:
                payload.copy_(carried)

    def _watch(self, work: Any) -> None:
        """Wait for a transfer, and abort it at the deadline."""
        deadline = time.monotonic() + self.link.timeout_s
        while not work.is_completed():
            if time.monotonic() > deadline:
                self.close()
                raise LinkBroken(f"no transfer in {self.link.timeout_s:g} s")
            time.sleep(_POLL_S)
        work.wait()


def _nccl_group(link: Link, member: int) -> Any:
    # Connections of its own: NCCL waits in the store with the client's lock held.
    store = TCPStore(link.store_host, link.store_port, is_master=False, wait_for_workers=False)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=link.timeout_s)
    place = PrefixStore(f"{link.prefix}/nccl", store)
    return dist.ProcessGroupNCCL(place, member, link.world_size, options)
