"""vLLM weight-transfer engine that maps a staged version and loads it at once.

vLLM's own engines hold the model on the meta device from start to finish, so generation
must stand still for the whole transfer and a failed transfer leaves a torn model. Here a version
has been received and checked outside the engine, which is asked for nothing before the commit:
`update_weights` maps the version, and `finish_weight_update` loads it, between two forward steps.

What the model computes with is read back afterwards, in a turn of its own.

Importing this module registers the engine, which happens in every worker because the
worker extension below lives here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from services.protocol.weights.place import Place
from services.protocol.weights.weights import WeightManifest
from services.rollout_server.engine.vllm_patches import executors, weight_updates
from services.rollout_server.engine.vllm_patches.cpu_seeds import leave_draws_spent
from services.rollout_server.engine.vllm_patches.cpu_sleep import sleep_on_cpu
from services.rollout_server.engine.vllm_patches.loading import adapter_load, load_plan
from services.rollout_server.weights.read_back import ReadBack
from services.transport.shared_memory import HeldBuffer, Mappings
from services.transport.version_bytes import VersionBytes, block_bytes

BACKEND = "millrace_staged"
"""Name under which the engine is registered with vLLM."""


@dataclass(kw_only=True)
class NoInit(WeightTransferInitInfo):
    """Nothing is set up ahead."""


@dataclass(kw_only=True)
class StagedInfo(WeightTransferUpdateInfo):
    """Where a worker finds a version.

    Attributes:
        manifest: `WeightManifest` as msgpack.
        place: `Place` of its bytes as msgpack.
    """

    manifest: bytes
    place: bytes


@dataclass(frozen=True, kw_only=True)
class _Unread:
    """A version that was loaded and not read back yet.

    Attributes:
        version: its number.
        traced: the parameters that are parts of it.
        block: its memory, uint8.
        held: see `HeldBuffer`.
    """

    version: int
    traced: Sequence[load_plan.Traced]
    block: Tensor
    held: HeldBuffer | None


class StagedWeightLoader(WeightTransferEngine[NoInit, StagedInfo]):
    """One worker's end: at most one staged version, and what is committed.

    Attributes:
        torn: a load failed half-way, and none has succeeded since.
        pageable: CUDA has not registered the memory that was mapped last.
        committed: version and digest of what was loaded last.
    """

    init_info_cls = NoInit
    update_info_cls = StagedInfo
    defers_processing = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if hasattr(self.model, "lora_manager"):
            adapter_load.leave_ends_alone(self.model)
        self._mappings = Mappings(gpu=self.device if self.device.type == "cuda" else None)
        self._staged: VersionBytes | None = None
        self._manifest: WeightManifest | None = None
        self._held: HeldBuffer | None = None
        self._plan: load_plan.LoadPlan | None = None
        self._unread: _Unread | None = None
        self._read_back = ReadBack()
        self.torn = self.pageable = False
        self.committed: dict[str, Any] = {"version": None, "digest": ""}

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """See `NoInit`."""

    def start_weight_update(self) -> None:
        """Forget an earlier version; the model stays live."""
        self._unread = None
        self.abandon()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Map a version that is complete, and hold it if it lies in memory that is written again.

        Raises:
            OSError: its memory cannot be read.
            ValueError: its memory is gone, was written again, or is too small for the manifest.
        """
        info = self.parse_update_info(update_info)
        manifest = msgspec.msgpack.decode(info.manifest, type=WeightManifest)
        place = msgspec.msgpack.decode(info.place, type=Place)
        self._held = HeldBuffer(place) if place.serial else None
        self._staged = VersionBytes(manifest, self._mappings.read(place, block_bytes(manifest)))
        self._manifest = manifest
        self.pageable = self._mappings.is_pageable(place)

    def receive_weights(self, update_info: StagedInfo) -> None:
        """Never called: `update_weights` is overridden."""
        raise NotImplementedError

    def finish_weight_update(self) -> None:
        """Load the staged version into the live model.

        Raises:
            RuntimeError: nothing is staged (the live model is as before), or loading failed
                half-way (`torn` is then true until a commit succeeds).
        """
        staged, manifest = self._staged, self._manifest
        if staged is None or manifest is None:
            raise RuntimeError("no version is staged")
        adapter = manifest.adapter
        try:
            if adapter is None:
                self.torn = True
                plan = self._load(staged)
                self._unread = _Unread(
                    version=manifest.version,
                    traced=plan.traced,
                    block=staged.block,
                    held=self._held,
                )
            else:
                loaded = adapter_load.prepare(self.model, adapter, staged.named_tensors())
                self.torn = True
                adapter_load.exchange(self.model, loaded)
        finally:
            self.abandon()
        self.torn = False
        self.committed = {"version": manifest.version, "digest": manifest.digest}
        self._mappings.pin()

    def _load(self, staged: VersionBytes) -> load_plan.LoadPlan:
        plan, self._plan = self._plan, None  # after a failure vLLM loads by itself once more
        self._plan = load_plan.load(self.model, self.model_config, staged, plan)
        return self._plan

    def read_back(self) -> str | None:
        """Compare what the model computes with and the version that was loaded last.

        Returns:
            Which parameters are not what was sent; None: all are, or no version waits for this.
        """
        unread, self._unread = self._unread, None
        if unread is None:
            return None
        wrong = self._read_back.check(unread.traced, unread.block, unread.version)
        if wrong is not None:
            self._plan = None  # vLLM loads by itself once more
        return wrong

    def abandon(self) -> None:
        """Forget what was staged, so that its memory may be written again."""
        self._staged = self._manifest = self._held = None

    def shutdown(self) -> None:
        """Drop everything."""
        self.abandon()


class WeightLoaderExtension:
    """Worker methods that the replica calls through `collective_rpc`.

    vLLM mixes this class into its worker; the attributes used are the worker's.
    """

    weight_transfer_engine: StagedWeightLoader
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]

    def unlink_shared_memory(self) -> None:
        """See `executors.unlink_shared_memory`."""
        executors.unlink_shared_memory()

    def open_update(self, manifest: bytes, place: bytes) -> bool:
        """Map a version that is about to be loaded, whatever became of the update before.

        Returns:
            Whether CUDA has not registered its memory, so that its load will be slow.
        """
        weight_updates.close(self)
        self.start_weight_update()
        self.update_weights({"manifest": manifest, "place": place})
        return self.weight_transfer_engine.pageable

    def finish_adapter(self) -> None:
        """Load a staged adapter and end the update.

        vLLM's own end of an update forgets all adapters, because it takes the weights that
        they were for to be replaced.
        """
        self.weight_transfer_engine.finish_weight_update()
        weight_updates.close(self)

    def read_back(self) -> str | None:
        """See `StagedWeightLoader.read_back`."""
        return self.weight_transfer_engine.read_back()

    def weights_digest(self) -> dict[str, Any]:
        """Version and digest of the bytes that were loaded last, and whether it is torn."""
        loader = self.weight_transfer_engine
        return loader.committed | {"torn": loader.torn}


weight_updates.register(BACKEND, StagedWeightLoader)
# The extension is what vLLM imports in every worker, so the worker's patches go in here.
leave_draws_spent()
sleep_on_cpu()
