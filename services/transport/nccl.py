"""A link whose bytes go from GPU to GPU over NCCL, for replicas on other nodes.

Meeting, headers and the noticing of dead members stay with Gloo. NCCL itself cannot be
interrupted and does not notice: every transfer is watched, and one that misses its deadline
aborts the communicator. The link is then broken, and the bus gives a new one. Torch's own watchdog
would end the process, a trainer's rank or an engine, so it is switched off for these groups.

On GPUs only one end of it has run (`tests/gpu/test_nccl_link.py`); the rest is tested with a fake
that takes devices and watches as NCCL and torch do.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import BroadcastOptions, PrefixStore, TCPStore  # type: ignore[attr-defined]

from services.protocol.weights.weight_bus import Link
from services.transport.gloo import GlooLink, LinkBroken

_POLL_S = 0.0002
_FOR_EVER = timedelta(days=7)
"""Torch's time-out of a transfer, far above the link's, which ends it."""
_NO_WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""What a group reads when it is made: its watchdog ends nothing, and nothing watches that."""
_environment = threading.Lock()

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
        device: torch.device,
        make_group: MakeGroup | None = None,
    ) -> None:
        """See `GlooLink`.

        Args:
            link: see `GlooLink`.
            address: see `GlooLink`.
            member: see `GlooLink`.
            device: where bytes wait before and after the wire: the GPU of this member alone. Not
                the current one, which CUDA keeps by thread, and which is 0 in a new thread.
            make_group: see `MakeGroup`; NCCL's.
        """
        super().__init__(link, address, member)
        self._device = device
        self._make_group = make_group or nccl_group
        self._carrier: Any = None
        self._on_device = torch.empty(0, dtype=torch.uint8)
        self._stream: Any = None

    def open(self) -> None:
        """See `GlooLink.open`."""
        super().open()
        try:
            with torch.cuda.device(self._device):
                self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
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
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if payload.numel() > self._on_device.numel():
                self._on_device = empty_bytes(payload.numel(), self._device)
            carried = self._on_device[: payload.numel()]
            if self._member == 0:
                carried.copy_(payload, non_blocking=True)
            self._watch(self._carrier.broadcast([carried], options))
            if self._member != 0:
                payload.copy_(carried)

    def _reason(self, error: RuntimeError) -> str:
        # Torch's first line says where it failed; NCCL's own reason follows `Last error:`.
        _, _, reason = str(error).partition("Last error:")
        first = super()._reason(error)
        return f"{first}; {reason.strip()[:200]}" if reason.strip() else first

    def _watch(self, work: Any) -> None:
        """Wait for a transfer, and abort it at the deadline."""
        deadline = time.monotonic() + self.link.timeout_s
        while not work.is_completed():
            if time.monotonic() > deadline:
                self.close()
                raise LinkBroken(f"no transfer in {self.link.timeout_s:g} s")
            time.sleep(_POLL_S)
        work.wait()


def empty_bytes(count: int, device: torch.device) -> Tensor:
    """Memory on a GPU."""
    return torch.empty(count, dtype=torch.uint8, device=device)


def nccl_group(link: Link, member: int) -> Any:
    """A group whose transfers only their caller watches; see `MakeGroup`."""
    # Connections of its own: NCCL waits in the store with the client's lock held.
    deadline = timedelta(seconds=link.timeout_s)
    store = TCPStore(
        link.store_host, link.store_port, is_master=False, timeout=deadline, wait_for_workers=False
    )
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _FOR_EVER
    options.config.blocking = 0  # or a member that dies while the others connect hangs them
    place = PrefixStore(f"{link.prefix}/nccl", store)
    # Torch reads it once a process, when the first such group connects; others do not heed it.
    os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(max(1, round(link.timeout_s))))
    with _environ(_NO_WATCHDOG):
        return dist.ProcessGroupNCCL(place, member, link.world_size, options)


@contextlib.contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that only a group which is made meanwhile shall see."""
    with _environment:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
