"""The Ray actor of one FSDP2 rank: torch in one thread, the weight bus beside it.

The module imports no torch, so the Serve replica that starts ranks stays light.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from services.observability.garbage import heavy_imports
from services.open_files import raise_open_files
from services.peers import bus_peer
from services.protocol.errors import NotReady, portable_errors
from services.protocol.placement import SharedSeat
from services.protocol.trainer import RankProgress
from services.protocol.weights.hello import TrainerHello
from services.protocol.weights.weight_bus import Link
from services.shared_devices import SharedDevices, lock_folder
from services.trainer.config import TrainerConfig
from services.trainer.heartbeat import name_torch_thread
from services.trainer.rank.rank_messages import RankModel

if TYPE_CHECKING:
    from services.trainer.rank.fault_injector import FaultInjector, SendFault
    from services.trainer.rank.learner import Learner
    from services.transport.gloo import GlooLink

T = TypeVar("T")
SEGMENTS_GROW = "expandable_segments:True"
PINNED_AS_ASKED = "pinned_max_round_threshold_mb:1"
"""Settings of torch's allocators (2.13)."""


def _of_learner(name: str, phase: str) -> Callable[..., Awaitable[Any]]:
    """The method of the same name of `Learner`, called in the torch thread."""

    async def call(self: "TrainerRank", *args: Any) -> Any:
        return await self._in_torch(lambda: getattr(self._loaded(), name)(*args), phase)

    return call


class TrainerRank:
    """One rank of one incarnation of the group.

    All torch work runs in a single thread, in the order in which it was asked for; the
    event loop stays free to follow the bus while a train step runs.
    """

    def __init__(
        self, config: TrainerConfig, group: str, rank: int, seat: SharedSeat | None = None
    ) -> None:
        """`seat`: the device that it shares with an engine, None: its device is its own."""
        raise_open_files()
        self._devices = _shared(config, seat)
        self._config, self._group, self._rank = config, group, rank
        self._address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        # Torch takes huge pages for large tensors: with small ones, a snapshot's fresh memory
        # costs several times the copy.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        if config.device == "cuda":
            # As large as torch's own; without it torch refuses `RunStart.determinism`.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            _set_allocators(pins=config.offload != "none" or config.activation_offload)
        self._torch = ThreadPoolExecutor(
            1, thread_name_prefix="torch", initializer=name_torch_thread
        )
        self._torch.submit(_import_torch)  # the ranks import while they wait for rank 0
        self._store: Any = None
        self._learner: Learner | None = None
        self._fault_injector: FaultInjector | None = None
        self._member: asyncio.Task[None] | None = None

    async def meet(self) -> tuple[str, int]:
        """Open the group's rendezvous store, on rank 0; returns its address and port."""
        self._store = await self._in_torch(partial(_open_store, self._address))
        return self._address, self._store.port

    async def join(self, place: tuple[str, int]) -> RankModel:
        """Join the group, load and shard the model, and start following the bus.

        Raises:
            InvalidInput: the model cannot be loaded.
        """
        await self._take_device()
        self._learner = await self._in_torch(partial(self._load, *place))
        self._member = asyncio.create_task(self._send())
        return self._learner.model

    async def unpark(self) -> None:
        """Wait for the device that it shares, and take it.

        Raises:
            NotReady: the engine does not free it.
        """
        await self._take_device()
        await self._in_torch(self._loaded().unpark, "taking its device")

    async def park(self) -> int:
        """Free the device that it shares; returns the bytes that wait elsewhere."""
        parked = await self._in_torch(self._loaded().park, "freeing its device")
        if self._devices is not None:
            self._devices.release()
        return parked

    async def _take_device(self) -> None:
        from services.trainer.heartbeat import HEARTBEAT

        if self._devices is not None:
            await self._devices.take(self._config.start_timeout_s, waiting=HEARTBEAT.mark)

    async def _send(self) -> None:
        """Follow the bus, if this rank holds a part of the model's first copy."""
        if self._rank >= self._config.shards:
            await asyncio.Event().wait()
        from services.trainer.rank.fault_injector import FaultInjector
        from services.trainer.snapshot.bus_member import BusMember  # imports torch
        from services.transport.links import make_link
        from services.transport.network_interfaces import network_interfaces
        from services.transport.shared_memory import memory_domain

        hello = TrainerHello(
            member_id=f"trainer/{self._group}/{self._rank}",
            group=self._group,
            rank=self._rank,
            world_size=self._config.shards,
            memory_domain=memory_domain(),
            has_gpu=self._config.device == "cuda",
            interfaces=network_interfaces(),
        )
        link_factory: Callable[[Link, str], GlooLink] = partial(
            make_link, device=self._loaded().gpu
        )
        if self._config.allow_fault_injection:
            self._fault_injector = FaultInjector(link_factory)
            link_factory = self._fault_injector.make_link
        snapshots = self._loaded().snapshots
        member = BusMember(hello, bus_peer(), snapshots, self._address, make_link=link_factory)
        await member.run()

    async def inject_fault(
        self, fault: "SendFault", replica_id: str = "", bucket: int | None = None
    ) -> None:
        """See `services.trainer.rank.fault_injector.FaultInjector`.

        Raises:
            NotReady: the configuration does not allow it, or this rank sends nothing.
        """
        if self._fault_injector is None:
            raise NotReady("the rank sends nothing, or trainer.allow_fault_injection is off")
        self._fault_injector.inject(fault, replica_id, bucket)

    async def progress(self) -> RankProgress:
        """What the torch thread does; answers while it works."""
        from services.trainer.heartbeat import HEARTBEAT  # Ray would copy it with the class

        return replace(HEARTBEAT.report(), rank=self._rank)

    async def follow_bus(self) -> None:
        """Ends only with the rank or with a fault of its bus membership; call after `join`."""
        if self._member is None:
            raise RuntimeError("follow_bus before join")
        await self._member

    snapshot = _of_learner("snapshot", "snapshot")
    start_run = _of_learner("start_run", "loading")
    train = _of_learner("train", "micro-batch")
    save = _of_learner("save", "saving")
    logprobs = _of_learner("logprobs", "scoring")
    profile = _of_learner("profile", "idle")

    async def _in_torch(self, work: Callable[[], T], phase: str = "starting") -> T:
        with portable_errors():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._torch, partial(_in_phase, phase, work))

    def _load(self, address: str, port: int) -> "Learner":
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # seconds to import; see the module's first line

        from services.trainer.heartbeat import HEARTBEAT
        from services.trainer.rank.learner import Learner
        from services.trainer.rank.process_group import join_group

        store = self._store or TCPStore(address, port, is_master=False, wait_for_workers=False)
        join_group(self._config, self._rank, store, self._address)
        device, offload = self._config.device, self._config.offload
        HEARTBEAT.follow(device, steps_on_host=offload == "all")
        HEARTBEAT.enter("loading")
        return Learner(self._config)

    def _loaded(self) -> "Learner":
        if self._learner is None:
            raise RuntimeError("a rank was given work before join")
        return self._learner


def _in_phase(phase: str, work: Callable[[], T]) -> T:
    from services.trainer.heartbeat import HEARTBEAT

    HEARTBEAT.enter(phase)
    try:
        return work()
    finally:
        HEARTBEAT.enter("idle")


def _shared(config: TrainerConfig, seat: SharedSeat | None) -> SharedDevices | None:
    if seat is None:
        return None
    if config.device == "cuda":
        # Ray gave the GPU to the engine; torch looks here when it first needs one.
        os.environ["CUDA_VISIBLE_DEVICES"] = seat.device
    return SharedDevices([seat.device], lock_folder())


def _set_allocators(*, pins: bool) -> None:
    """Keep torch's allocators from taking more than is asked, unless the user sets them.

    Without segments that grow, fragments took up to 3.7 GiB beside 9 to 17 GiB of tensors on an
    H200, with them 1.8 on an H100. Pinned memory is rounded up to powers of two, a third more of
    what an 8B model offloads.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        settings = [SEGMENTS_GROW, PINNED_AS_ASKED] if pins else [SEGMENTS_GROW]
        os.environ["PYTORCH_ALLOC_CONF"] = ",".join(settings)


def _import_torch() -> None:
    with heavy_imports():
        import services.trainer.rank.learner  # noqa: F401  (seconds to import; done ahead of time)


def _open_store(address: str) -> Any:
    from services.trainer.rank.process_group import open_store  # imports torch

    return open_store(address)
