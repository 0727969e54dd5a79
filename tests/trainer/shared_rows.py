"""What ranks do with a model and rows that they share, in tests of context parallelism."""

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.trainer.batch.collate import collate_sequences
from services.trainer.config import TrainerConfig
from services.trainer.model.compiled import compile_layers
from services.trainer.model.context_parallel import ALONE, ContextGroup
from services.trainer.model.model import Policy, decoder_layers
from services.trainer.model.model_check import remove_randomness
from services.trainer.model.packed_attention import PACKED
from services.trainer.model.token_logprobs import Logits

VOCABULARY = 61


def make_policy(model: Any, group: ContextGroup) -> Policy:
    """In float64 and not sharded, so that nothing but the shared rows can make a difference."""
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(model, attn_implementation="sdpa").double()
    remove_randomness(causal)
    causal.set_attn_implementation(PACKED)
    return Policy(
        causal,
        packs=True,
        logits=Logits(max_bytes=1 << 20),
        gradient_sync="every_micro_batch",
        context_group=group,
    )


def make_rows(lengths: list[int]) -> list[list[int]]:
    draw = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(VOCABULARY, (one,), generator=draw).tolist() for one in lengths]


def learn(policy: Policy, lengths: list[int]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logprobs, entropies and this rank's gradients of a loss that no token has alone."""
    policy.zero_grad()
    micro = collate_sequences(make_rows(lengths))
    logprobs, entropies = policy(micro, 0.8, "gradient")
    assert entropies is not None
    sums = logprobs.new_zeros(micro.sequences).index_add(0, micro.row, logprobs)
    loss = (sums / 10).exp().sum() + (logprobs * entropies).mean() + entropies.square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: torch.zeros_like(one) for name, one in policy.named_parameters()}
    found |= {name: one.grad for name, one in policy.named_parameters() if one.grad is not None}
    return logprobs.detach(), entropies.detach(), found


def learn_together(size: int, model: Any, lengths: list[int], compiled: bool = False) -> Any:
    """The same of rows that `size` ranks share; gradients added up over those ranks."""
    config = TrainerConfig(model="m", world_size=dist.get_world_size(), context_parallel=size)
    group = ContextGroup.make(config)
    policy = make_policy(model, group)
    if compiled:
        compile_layers(decoder_layers(policy.causal), backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    logprobs, entropies, found = learn(policy, lengths)
    assert compiled == bool(torch._dynamo.utils.counters["stats"])
    for gradient in found.values():
        dist.all_reduce(gradient, group=group.ranks)
    gradients = {name: one.numpy() for name, one in found.items()}
    return logprobs.numpy(), entropies.numpy(), gradients


def kept_bytes(size: int, model: Any, lengths: list[int]) -> int:
    """Bytes of activations that this rank keeps for the backward pass."""
    config = TrainerConfig(model="m", world_size=dist.get_world_size(), context_parallel=size)
    group = ContextGroup.make(config) if size > 1 else ALONE
    policy = make_policy(model, group)
    weights = {one.untyped_storage().data_ptr() for one in policy.parameters()}
    micro = collate_sequences(make_rows(lengths))
    return _saved(lambda: policy(micro, 1.0)[0], weights)


def _saved(forward: Callable[[], Tensor], weights: set[int]) -> int:
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage that is freed could be counted under its next name

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(kept.values())
