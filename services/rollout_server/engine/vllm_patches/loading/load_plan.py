"""How the tensors of a version get into a model's layers: noted once, and done again for the next.

vLLM's layerwise reload finds the layer of each tensor by its name and runs each loader twice, first
on the meta device to count what it fills, and copies every tensor into fresh memory before it packs
it. Here its first load is noted, layer by layer. A later one runs each loader once, and a tensor
that lies in the version's memory as its layer needs it is packed from there. That is for CPUs. What
depends on more than that, such as layers that are quantised while they are loaded, has no plan.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import BoundArguments, Signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import layerwise, meta
from vllm.platforms import current_platform

from services.protocol.weights.weights import TensorSpec
from services.rollout_server.engine.vllm_patches.loading import layerwise_load
from services.transport.version_bytes import VersionBytes

_PLAIN = (type(None), UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A tensor within a version's memory.

    Attributes:
        start: of its first element, bytes.
        dtype: see `torch.Tensor`.
        shape: see `torch.Tensor`.
        stride: see `torch.Tensor`.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, block: Tensor) -> Tensor:
        """The tensor in the memory of a version, uint8."""
        size = self.dtype.itemsize
        end = len(block) - (len(block) - self.start) % size
        return block[self.start : end].view(self.dtype).as_strided(self.shape, self.stride)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of a loader.

    Attributes:
        parameter: name of what it loads, in its layer.
        part: the tensor that is loaded, which is the argument `tensor`.
        others: all other arguments, but the parameter.
        marks: attributes that vLLM gave the tensor.
    """

    parameter: str
    part: Part
    tensor: str
    others: dict[str, Any]
    signature: Signature
    marks: dict[str, Any]

    def bound(self, block: Tensor) -> BoundArguments:
        """Its arguments for what lies in `block`, without the parameter."""
        loaded = self.part.of(block)
        loaded.__dict__.update(self.marks)
        given: Any = self.others | {self.tensor: loaded}
        return BoundArguments(self.signature, given)


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """What to do for a layer.

    Attributes:
        module: of the model.
        calls: of its loaders, in their order.
        whole: parameters that lie in a version's memory as they are.
    """

    module: torch.nn.Module
    calls: list[_Call]
    whole: dict[str, Part]


class LoadPlan:
    """The load of one model.

    Attributes:
        tensors: of the versions that it is for.
    """

    def __init__(
        self, model: torch.nn.Module, tensors: tuple[TensorSpec, ...], layers: list[_Layer]
    ) -> None:
        self.tensors, self._model, self._layers = tensors, model, layers
        self._attention: list[Any] = list(filter(is_deferred_attention_layer, model.modules()))
        head = getattr(model, "lm_head", None)
        self._loads_head = any(layer.module is head for layer in layers)

    @torch.no_grad()
    def load(self, block: Tensor, dtype: torch.dtype) -> None:
        """Replace all parameters.

        Args:
            block: the memory of a version, uint8.
            dtype: the model's.

        Raises:
            Exception: from vLLM's loaders; the model is torn.
        """
        try:
            for layer in self._layers:
                _load(layer, block)
        except BaseException:
            layerwise_load.restore(self._model)
            raise
        for one in self._attention:
            one.process_weights_after_loading(dtype)
        layerwise_load.repack(self._model, head=not self._loads_head)


def load(model: Any, config: Any, staged: VersionBytes, plan: LoadPlan | None) -> LoadPlan | None:
    """Replace all parameters of a vLLM model by a version, by the plan if that is for it.

    Returns:
        The plan for the next version, None if there can be none.

    Raises:
        Exception: see `layerwise_load.load`.
    """
    if not current_platform.is_cpu():  # where most of the gain is, and where this has run
        layerwise_load.load(model, config, staged.named_tensors())
        return None
    if plan is not None and plan.tensors == staged.layout.tensors:
        plan.load(staged.block, config.dtype)
        return plan
    with _noted() as noted:
        layerwise_load.load(model, config, staged.named_tensors())
    layers = [_layer(layer, calls, staged.block) for layer, calls in noted]
    ready = [one for one in layers if one is not None]
    starts = {call.part.start for one in ready for call in one.calls}
    if len(ready) < len(layers) or len(starts) < len(staged.layout.tensors):
        return None
    return LoadPlan(model, staged.layout.tensors, ready)


@contextmanager
def _noted() -> Iterator[list[tuple[torch.nn.Module, list[tuple[str, BoundArguments]]]]]:
    """The layers that vLLM loads within, and the calls of their loaders."""
    process: Callable[..., None] = layerwise._layerwise_process
    noted = []

    def note(layer: torch.nn.Module, info: Any) -> None:
        noted.append((layer, list(info.loaded_weights)))
        process(layer, info)

    layerwise._layerwise_process = note
    try:
        yield noted
    finally:
        layerwise._layerwise_process = process


def _layer(
    module: torch.nn.Module, noted: list[tuple[str, BoundArguments]], block: Tensor
) -> _Layer | None:
    """What to do for a layer, None if that is not known."""
    calls = [_call(name, bound, block) for name, bound in noted]
    known = [one for one in calls if one is not None]
    if len(known) < len(calls) or not isinstance(getattr(module, "quant_method", None), _PLAIN):
        return None
    found = {name: _whole(module, name, known, block) for name in {one.parameter for one in known}}
    whole = {name: part for name, part in found.items() if part is not None}
    return _Layer(module=module, calls=known, whole=whole)


def _call(name: str, bound: BoundArguments, block: Tensor) -> _Call | None:
    others = {key: value for key, value in bound.arguments.items() if key != "param"}
    tensors = [key for key, value in others.items() if isinstance(value, Tensor)]
    if len(tensors) != 1:
        return None
    loaded = others.pop(tensors[0])
    if loaded.untyped_storage().data_ptr() != block.untyped_storage().data_ptr():
        return None  # made of what was sent
    part = Part(
        start=loaded.data_ptr() - block.data_ptr(),
        dtype=loaded.dtype,
        shape=tuple(loaded.shape),
        stride=loaded.stride(),
    )
    return _Call(
        parameter=name,
        part=part,
        tensor=tensors[0],
        others=others,
        signature=bound.signature,
        marks=dict(loaded.__dict__),
    )


def _whole(module: torch.nn.Module, name: str, calls: list[_Call], block: Tensor) -> Part | None:
    """Where a parameter lies in a version's memory, None if it does not lie there as it is."""
    blank = layerwise.get_layerwise_info(module).restore_metadata[0].get(name)
    if blank is None:
        return None
    trial = meta.materialize_meta_tensor(blank)
    loader = layerwise._get_original_loader(trial)
    with torch.no_grad(), Copies() as copies:
        for call in calls:
            if call.parameter == name:
                bound = call.bound(block)
                bound.arguments["param"] = trial
                loader(*bound.args, **bound.kwargs)
    return copies.source_of(trial, block)


class Copies(TorchDispatchMode):
    """Watches how tensors are filled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._only_copies = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        if func is torch.ops.aten.copy_.default:
            self._copies.append((args[0], args[1]))
        elif func._schema.is_mutable and args[0].numel():
            self._only_copies = False
        return func(*args, **(kwargs or {}))

    def source_of(self, filled: Tensor, block: Tensor) -> Part | None:
        """The part of `block` that was copied to `filled`, byte by byte and to all of it."""
        filled_to, shifts = 0, set()
        for to, source in sorted(self._copies, key=lambda copy: copy[0].data_ptr()):
            alike = to.dtype == source.dtype == filled.dtype and to.numel() == source.numel()
            if not (alike and to.is_contiguous() and source.is_contiguous()):
                return None
            at = to.data_ptr() - filled.data_ptr()
            if at != filled_to or source.untyped_storage().data_ptr() != (
                block.untyped_storage().data_ptr()
            ):
                return None
            filled_to += to.nbytes
            shifts.add(source.data_ptr() - block.data_ptr() - at)
        if filled_to != filled.nbytes or len(shifts) != 1 or not self._only_copies:
            return None
        return Part(
            start=shifts.pop(),
            dtype=filled.dtype,
            shape=tuple(filled.shape),
            stride=filled.stride(),
        )


def _load(layer: _Layer, block: Tensor) -> None:
    """What vLLM's reload does for one layer once all of its tensors are there."""
    module, info = layer.module, layerwise.get_layerwise_info(layer.module)
    info.kernel_tensors = layerwise.get_layer_params_buffers(module)
    info.kernel_non_persistent_buffers = set(module._non_persistent_buffers_set)
    info.load_numel_total = 0  # from here on it must be restored after a failure
    layerwise.restore_layer_on_meta(module, info)
    for name, part in layer.whole.items():
        blank = getattr(module, name)
        here = part.of(block)
        here.__class__, here.__dict__ = blank.__class__, blank.__dict__.copy()
        setattr(module, name, here)
    info.loaded_weights = [
        (call.parameter, call.bound(block))
        for call in layer.calls
        if call.parameter not in layer.whole
    ]
    layerwise._layerwise_process(module, info)
