"""Loading checkpoint tensors into a live vLLM model, and cleaning up when that fails.

The layerwise reload of vLLM writes into the storage of the live parameters, so it is not a
transaction: what fails in the middle leaves some layers new. The caller must then keep the
model from serving until a whole version has been loaded.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    layerwise,
)
from vllm.platforms import current_platform

from services.rollout_server.engine.vllm_patches.loading.quantised_load import quantise_on_load

_HEAD = "lm_head.weight"


class _LookUp(UnquantizedEmbeddingMethod):
    """Of embeddings by which nobody multiplies."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack nothing."""


@torch.no_grad()
def load(model: Any, model_config: Any, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Replace all parameters of a vLLM model by the checkpoint `tensors`.

    Raises:
        ValueError: a parameter of the model got no tensor.
        Exception: from vLLM's loaders, e.g. for an unknown name or a wrong shape.
    """
    live = {name for name, _ in model.named_parameters()}
    if _HEAD in live:
        _pack_no_embeddings(model)
    try:
        initialize_layerwise_reload(model)
        # Of what kernels hold only what a checkpoint has, too: others are made while it is loaded.
        expected = live & {name for name, _ in model.named_parameters()}
        expected -= quantise_on_load(model)
        loaded = model.load_weights(tensors)
        finalize_layerwise_reload(model, model_config)  # type: ignore[no-untyped-call]
    except BaseException:
        restore(model)
        raise
    repack(model, head=loaded is None or _HEAD not in loaded)
    config = getattr(model, "config", None)
    tied = {"lm_head.weight"} if getattr(config, "tie_word_embeddings", False) else set()
    missing = expected - loaded - tied if loaded is not None else set()
    if missing:
        raise ValueError(f"no tensor was sent for {sorted(missing)}")


def restore(model: torch.nn.Module) -> None:
    """Put the kernel tensors back wherever a reload is half done, so that a new one can start."""
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            layerwise._place_kernel_tensors(layer, info)
        info.reset()  # type: ignore[no-untyped-call]
    layerwise.LOADING_LAYERS.clear()


def repack(model: torch.nn.Module, *, head: bool) -> None:
    """Pack again what the reload does not: experts, and the head if it got no tensor (`head`)."""
    if head:
        _repack_tied_head(model)
    _repack_experts(model)


def _pack_no_embeddings(model: torch.nn.Module) -> None:
    """On a CPU vLLM packs embeddings, too, as if they were a head; not those of a model that has a
    head of its own."""
    for layer in model.modules():
        if type(layer) is VocabParallelEmbedding and (
            type(layer.quant_method) is UnquantizedEmbeddingMethod
        ):
            layer.quant_method = _LookUp()


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Pack a tied output head again.

    On CPU a linear layer computes with a packed copy of its weight. A tied head gets no
    tensor of its own, so the reload never packs it again and it would keep the weights of
    the version before.
    """
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


def _repack_experts(model: torch.nn.Module) -> None:
    """Pack the experts of a mixture again.

    On CPU their kernel computes with packed weights, too, but vLLM packs them at the first
    load only: after a reload the kernel would take plain weights for packed ones.
    """
    if not current_platform.is_cpu():
        return
    # Not a module for GPUs.
    from vllm._custom_ops import cpu_prepack_moe_weight
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    layer: Any
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        experts = getattr(kernel, "fused_experts", None)
        if not isinstance(experts, CPUUnquantizedExperts) or experts._use_zentorch:
            continue
        for weight in (layer.w13_weight, layer.w2_weight):
            weight.copy_(cpu_prepack_moe_weight(weight, experts.isa))
