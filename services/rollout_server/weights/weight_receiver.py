"""vLLM weight-transfer engine that stages a version in the background and loads it at once.

vLLM's own engines hold the model on the meta device from start to finish, so generation
must stand still for the whole transfer and a failed transfer leaves a torn model. Here
`update_weights` only starts the receiving threads; the live model is untouched until
`finish_weight_update`, which runs between two forward steps.

Importing this module registers the engine, which happens in every worker because the
worker extension below lives here.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from services.protocol.weights.weight_bus import Link, SendWeights, StageWeights
from services.rollout_server.engine.vllm_patches import (
    adapter_load,
    executors,
    layerwise_load,
    weight_updates,
)
from services.rollout_server.engine.vllm_patches.cpu_seeds import leave_draws_spent
from services.rollout_server.weights.weight_staging import PeerSender, StagedVersion
from services.transport.gloo import GlooLink
from services.transport.links import make_link

BACKEND = "millrace_staged"
"""Name under which the engine is registered with vLLM."""


@dataclass(kw_only=True)
class NoInit(WeightTransferInitInfo):
    """Nothing is set up ahead: links are opened by the order that first names them."""


@dataclass(kw_only=True)
class StageInfo(WeightTransferUpdateInfo):
    """What a worker needs to stage a version.

    Attributes:
        order: `StageWeights` as msgpack.
        host: address of this node on which links listen.
        keep_copy: keep the bytes of what is committed.
    """

    order: bytes
    host: str
    keep_copy: bool


class StagedWeightReceiver(WeightTransferEngine[NoInit, StageInfo]):
    """One worker's receiver: open links, at most one staged version, what is committed."""

    init_info_cls = NoInit
    update_info_cls = StageInfo
    defers_processing = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if hasattr(self.model, "lora_manager"):
            adapter_load.leave_ends_alone(self.model)
        self._links: dict[str, GlooLink] = {}
        self._keep_copy = False
        self._copy: StagedVersion | None = None
        self._sends: dict[str, PeerSender] = {}
        self._host = ""
        self._staged: StagedVersion | None = None
        self.torn = False
        self.committed: dict[str, Any] = {"version": None, "digest": ""}

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """See `NoInit`."""

    def start_weight_update(self) -> None:
        """Forget an earlier stage; the model stays live."""
        self.abandon()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Start receiving in the background and return.

        Raises:
            ValueError: links and manifest do not fit together.
        """
        info = self.parse_update_info(update_info)
        order = msgspec.msgpack.decode(info.order, type=StageWeights)
        self._host, self._keep_copy = info.host, info.keep_copy
        wanted = {link.prefix for link in order.links}
        self._links = {prefix: link for prefix, link in self._links.items() if prefix in wanted}
        base = self._copy
        if order.base is not None and (base is None or base.manifest.version != order.base):
            held = None if base is None else base.manifest.version
            raise ValueError(f"base: {order.base} -> The copy here is of version {held}.")
        self._staged = StagedVersion(
            order.manifest, order.links, self._open, base=base if order.base is not None else None
        )

    def receive_weights(self, update_info: StageInfo) -> None:
        """Never called: `update_weights` is overridden."""
        raise NotImplementedError

    def vote(self) -> dict[str, Any]:
        """Whether the staged version is complete; never blocks."""
        staged = self._staged
        if staged is None:
            return {"state": "failed", "error": "nothing is staged", "version": -1, "seconds": 0.0}
        state = "failed" if staged.error else "staged" if staged.complete else "receiving"
        return {
            "state": state,
            "error": staged.error,
            "version": staged.manifest.version,
            "seconds": staged.seconds,
        }

    def finish_weight_update(self) -> None:
        """Load the staged version into the live model.

        Raises:
            RuntimeError: nothing complete is staged (the live model is as before), or
                loading failed half-way (`torn` is then true until a commit succeeds).
        """
        staged = self._staged
        if staged is None or not staged.complete:
            raise RuntimeError(f"no complete version is staged: {self.vote()}")
        adapter = staged.manifest.adapter
        if adapter is None:
            self.torn, self._copy = True, None
            layerwise_load.load(self.model, self.model_config, staged.named_tensors())
        else:
            loaded = adapter_load.prepare(self.model, adapter, staged.named_tensors())
            self.torn, self._copy = True, None
            adapter_load.exchange(self.model, loaded)
        self.torn = False
        self.committed = {"version": staged.manifest.version, "digest": staged.manifest.digest}
        self._copy, self._staged = staged if self._keep_copy else None, None

    def abandon(self) -> None:
        """Drop what was staged, and links on which bytes may still be under way."""
        if self._staged is not None:
            if not self._staged.complete:
                self._links = {}
            self._staged.abandon()
            self._staged = None

    def drop(self, prefix: str | None) -> None:
        """Forget what was staged and, unless None, links whose prefix starts with `prefix`."""
        self.abandon()
        if prefix is not None:
            self._links = {p: link for p, link in self._links.items() if not p.startswith(prefix)}

    def send_copy(self, order: SendWeights, host: str) -> None:
        """Begin to hand the copy to another replica; worker 0 does it for all."""
        if self.parallel_config.rank == 0:
            self._sends[order.link.prefix] = PeerSender(order, self._copy, host)

    def send_state(self, prefix: str) -> dict[str, Any] | None:
        """How far a send is; a send that is done is forgotten. None on other workers."""
        sender = self._sends.get(prefix)
        if sender is None:
            return None
        if sender.state["done"]:
            del self._sends[prefix]
        return sender.state

    def end_sends(self, prefix: str) -> None:
        """Call off sends whose prefix starts with `prefix`."""
        for one, sender in self._sends.items():
            if one.startswith(prefix):
                sender.cancel()

    def shutdown(self) -> None:
        """Drop everything."""
        self.end_sends("")
        self.abandon()
        self._links = {}

    def _open(self, link: Link) -> GlooLink:
        """Called by receiving threads; each has a prefix of its own."""
        opened = self._links.get(link.prefix)
        if opened is None:
            opened = make_link(link, self._host, 1 + self.parallel_config.rank, self.device)
            opened.open()
            self._links[link.prefix] = opened
        return opened


class WeightReceiverExtension:
    """Worker methods that the replica calls through `collective_rpc`.

    vLLM mixes this class into its worker; the attributes used are the worker's.
    """

    weight_transfer_engine: StagedWeightReceiver

    def unlink_shared_memory(self) -> None:
        """See `executors.unlink_shared_memory`."""
        executors.unlink_shared_memory()

    def stage_vote(self) -> dict[str, Any]:
        """See `StagedWeightReceiver.vote`."""
        return self.weight_transfer_engine.vote()

    def drop_stage(self, prefix: str | None = None) -> None:
        """Abandon the open update; with `prefix`, also the links whose prefix starts so."""
        self.weight_transfer_engine.drop(prefix)
        weight_updates.close(self)

    def finish_adapter(self) -> None:
        """Load a staged adapter and end the update.

        vLLM's own end of an update forgets all adapters, because it takes the weights that
        they were for to be replaced.
        """
        self.weight_transfer_engine.finish_weight_update()
        weight_updates.close(self)

    def send_copy(self, order: bytes, host: str) -> None:
        """See `StagedWeightReceiver.send_copy`; `order` is `SendWeights` as msgpack."""
        decoded = msgspec.msgpack.decode(order, type=SendWeights)
        self.weight_transfer_engine.send_copy(decoded, host)

    def send_state(self, prefix: str) -> dict[str, Any] | None:
        """See `StagedWeightReceiver.send_state`."""
        return self.weight_transfer_engine.send_state(prefix)

    def end_sends(self, prefix: str) -> None:
        """See `StagedWeightReceiver.end_sends`."""
        self.weight_transfer_engine.end_sends(prefix)

    def weights_digest(self) -> dict[str, Any]:
        """Version and digest of the bytes that were loaded last, and whether it is torn."""
        receiver = self.weight_transfer_engine
        return receiver.committed | {"torn": receiver.torn}


weight_updates.register(BACKEND, StagedWeightReceiver)
# The extension is what vLLM imports in every worker, so the worker's patch goes in here.
leave_draws_spent()
