"""Putting a LoRA adapter from memory into a live vLLM engine, in the place of the one before.

vLLM's own way is a folder that every worker reads while it generates. Here the tensors are
in memory already, and the exchange is part of a commit, between two forward steps.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.lora.layers import LogitsProcessorWithLoRA, VocabParallelEmbeddingWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from services.protocol.weights.weights import Adapter
from services.rollout_server.engine.adapter_requests import ADAPTER_ID


def leave_ends_alone(model: Any) -> None:
    """Take vLLM's wrappers off the embedding and the head, which no adapter of ours changes.

    On CPU the one around the head counts the tokens that are sampled, and ends the engine when
    logprobs of a prompt are asked for, which are more.
    """
    manager = model.lora_manager
    ends = (LogitsProcessorWithLoRA, VocabParallelEmbeddingWithLoRA)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, ends):
                setattr(parent, name, child.base_layer)
    for name, layer in list(manager.modules.items()):
        if isinstance(layer, ends):
            del manager.modules[name]


def prepare(model: Any, adapter: Adapter, tensors: Iterator[tuple[str, torch.Tensor]]) -> LoRAModel:
    """Make a vLLM adapter of PEFT tensors; what is served is not touched.

    Raises:
        ValueError: the engine has no such layer, or the rank is above its largest.
    """
    manager = model.lora_manager
    largest = manager.lora_config.max_lora_rank
    if adapter.rank > largest:
        raise ValueError(f"rank {adapter.rank}: the engine takes adapters up to rank {largest}")
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    config = PEFTHelper(r=adapter.rank, lora_alpha=adapter.alpha, target_modules=[])  # type: ignore[arg-type]
    loaded = LoRAModel.from_lora_tensors(
        ADAPTER_ID,
        # Copies, because vLLM multiplies B by the scale in place, and these bytes may be
        # kept as what was received.
        {name: tensor.clone() for name, tensor in tensors},
        config,
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
    )
    # vLLM would leave out silently what no layer asks for.
    unknown = sorted(loaded.loras.keys() - _layers(manager))
    if unknown:
        raise ValueError(f"the engine can adapt no layer {unknown[0]}; leave it out of targets")
    return loaded


@torch.no_grad()
def exchange(model: Any, loaded: LoRAModel) -> None:
    """Serve this adapter instead of the one before; not to be interrupted half-way."""
    manager = model.lora_manager
    manager.remove_adapter(ADAPTER_ID)
    manager.add_adapter(loaded)
    manager.activate_adapter(ADAPTER_ID)


def _layers(manager: Any) -> set[str]:
    """Layers that can be adapted, by the names that they have in a checkpoint."""
    parts = manager.packed_modules  # qkv_proj: [q_proj, k_proj, v_proj]
    return {part for name in manager.modules for part in parts.get(name, [name])}
