"""How the tensors of a version get into a model's layers: noted once, and done again for the next.

What is noted also tells which parameters are parts of a version as they are, so that what a model
computes with can be compared with what was sent. That is for all engines.

vLLM's layerwise reload finds the layer of each tensor by its name and runs each loader twice, first
on the meta device to count what it fills, and copies every tensor into fresh memory before it packs
it. Here its first load is noted, layer by layer. A later one runs each loader once, and a tensor
that lies in the version's memory as its layer needs it is packed from there. That is for CPUs. What
depends on more than that, such as layers that are quantised while they are loaded, has no plan.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import BoundArguments, Signature
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.model_loader.reload import layerwise, meta
from vllm.platforms import current_platform

from services.rollout_server.engine.vllm_patches.loading import layerwise_load
from services.rollout_server.engine.vllm_patches.loading.copies import (
    Copies,
    Part,
    is_within,
    part_of,
)
from services.transport.version_bytes import VersionBytes

_PLAIN = (type(None), UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
_Noted = list[tuple[torch.nn.Module, list[tuple[str, BoundArguments]]]]
"""Layers, and the calls of their loaders: the name of a parameter, and the arguments without it."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A parameter that a load fills from a version's memory as it lies there.

    Attributes:
        label: its name in the model.
        module: its layer.
        name: its name there.
        shape: before the layer packs it.
        dtype: of its elements.
        rows: first row, and where this and the next rows lie in a version's memory.
        multiplies: the layer is known by its products only, for it may have packed the parameter.
    """

    label: str
    module: Any
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: tuple[tuple[int, Part], ...]
    multiplies: bool


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
        traced: what of the model is part of a version.
        repeats: whether `load` can do it again.
    """

    def __init__(self, model: torch.nn.Module, staged: VersionBytes, noted: _Noted) -> None:
        self.tensors, self._model = staged.layout.tensors, model
        self.traced = _traced(model, noted, staged.block)
        # Elsewhere the gain is small, and it has not run.
        found = noted if current_platform.is_cpu() else []
        layers = [_layer(layer, calls, staged.block) for layer, calls in found]
        self._layers = [one for one in layers if one is not None]
        starts = {call.part.start for one in self._layers for call in one.calls}
        self.repeats = len(self._layers) == len(noted) and len(starts) == len(self.tensors)
        self._attention: list[Any] = list(filter(is_deferred_attention_layer, model.modules()))
        head = getattr(model, "lm_head", None)
        self._loads_head = any(layer.module is head for layer in self._layers)

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


def load(model: Any, config: Any, staged: VersionBytes, plan: LoadPlan | None) -> LoadPlan:
    """Replace all parameters of a vLLM model by a version, by the plan if that is for it.

    Returns:
        The plan for the next version.

    Raises:
        Exception: see `layerwise_load.load`.
    """
    if plan is None or plan.tensors != staged.layout.tensors:
        with _noted() as noted:
            layerwise_load.load(model, config, staged.named_tensors())
        return LoadPlan(model, staged, noted)
    if plan.repeats:
        plan.load(staged.block, config.dtype)
    else:
        layerwise_load.load(model, config, staged.named_tensors())
    return plan


@contextmanager
def _noted() -> Iterator[_Noted]:
    """The layers that vLLM loads within, and the calls of their loaders."""
    process: Callable[..., None] = layerwise._layerwise_process
    noted: _Noted = []

    def note(layer: torch.nn.Module, info: Any) -> None:
        calls = list(info.loaded_weights)
        process(layer, info)
        for _, bound in calls:  # or the memory in which each layer was filled would stay
            bound.arguments.pop("param", None)
        noted.append((layer, calls))

    layerwise._layerwise_process = note
    try:
        yield noted
    finally:
        layerwise._layerwise_process = process


def _layer(
    module: torch.nn.Module, noted: list[tuple[str, BoundArguments]], block: Tensor
) -> _Layer | None:
    """What to do for a layer, None if that is not known."""
    known = _known_calls(noted, block)
    if len(known) < len(noted) or not _is_plain(module):
        return None
    whole = {}
    for name in {one.parameter for one in known}:
        blank = _blank(module, name)
        if blank is not None:
            whole[name] = _copies(blank, name, known, block).source_of(blank, block)
    found = {name: part for name, part in whole.items() if part is not None}
    return _Layer(module=module, calls=known, whole=found)


def _is_plain(module: torch.nn.Module) -> bool:
    return isinstance(getattr(module, "quant_method", None), _PLAIN)


def _known_calls(noted: list[tuple[str, BoundArguments]], block: Tensor) -> list[_Call]:
    """The calls of a layer's loaders that can be made for another version."""
    calls = [_call(name, bound, block) for name, bound in noted]
    return [one for one in calls if one is not None]


def _blank(module: torch.nn.Module, name: str) -> Tensor | None:
    """A parameter before its load, without memory; None if vLLM does not load it anew."""
    found = layerwise.get_layerwise_info(module).restore_metadata[0].get(name)
    return None if found is None else meta.to_meta_tensor(found)


def _traced(model: torch.nn.Module, noted: _Noted, block: Tensor) -> list[Traced]:
    """What of a model is part of a version."""
    names = {module: name for name, module in model.named_modules()}
    traced = [
        one
        for module, calls in noted
        if _is_plain(module)
        for one in _traced_of(module, names[module], _known_calls(calls, block), block)
    ]
    # A tied head multiplies with the embedding's weight, which gets no tensor for it.
    head: Any = getattr(model, "lm_head", None)
    shared = getattr(head, "weight", None)
    for one in list(traced):
        if one.name == "weight" and not one.multiplies and one.module.weight is shared:
            traced.append(replace(one, label="lm_head.weight", module=head, multiplies=True))
    return traced


def _traced_of(
    module: torch.nn.Module, label: str, calls: list[_Call], block: Tensor
) -> Iterator[Traced]:
    for name in dict.fromkeys(one.parameter for one in calls):
        live, blank = getattr(module, name), _blank(module, name)
        if blank is None:
            blank = meta.to_meta_tensor(live)
        multiplies = name == "weight" and (
            isinstance(getattr(module, "quant_method", None), UnquantizedLinearMethod)
            or isinstance(module, ParallelLMHead)
        )
        rows = _copies(blank, name, calls, block).rows_of(blank, block)
        if rows and (blank.dim() == 2 if multiplies else live.shape == blank.shape):
            yield Traced(
                label=f"{label}.{name}",
                module=module,
                name=name,
                shape=tuple(blank.shape),
                dtype=blank.dtype,
                rows=rows,
                multiplies=multiplies,
            )


def _call(name: str, bound: BoundArguments, block: Tensor) -> _Call | None:
    others = {key: value for key, value in bound.arguments.items() if key != "param"}
    tensors = [key for key, value in others.items() if isinstance(value, Tensor)]
    if len(tensors) != 1:
        return None
    loaded = others.pop(tensors[0])
    if not is_within(loaded, block):
        return None  # made of what was sent
    return _Call(
        parameter=name,
        part=part_of(loaded, block),
        tensor=tensors[0],
        others=others,
        signature=bound.signature,
        marks=dict(loaded.__dict__),
    )


def _copies(blank: Tensor, name: str, calls: list[_Call], block: Tensor) -> Copies:
    """How the loaders fill a parameter, which has no memory for this."""
    loader = layerwise._get_original_loader(blank)
    with torch.no_grad(), Copies() as copies:
        for call in calls:
            if call.parameter == name:
                bound = call.bound(block)
                bound.arguments["param"] = blank
                loader(*bound.args, **bound.kwargs)
    return copies


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
