"""Parameters under the names and in the shapes of their checkpoint."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from services.protocol.errors import InvalidInput
from services.protocol.weights.weights import Dtype
from services.trainer.experts import names
from services.trainer.experts.names import CheckpointNames
from services.trainer.snapshot.layout import Divided, WireLayout, tensor_specs

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
FAMILIES = {
    "llama": LlamaConfig(**SMALL),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=3),
    "qwen3_moe": Qwen3MoeConfig(**SMALL, num_experts=5, moe_intermediate_size=8),
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_ranks_send_is_what_the_model_would_save(
    family: str, ranks: int, tmp_path: Path
) -> None:
    checkpoint_names = CheckpointNames(FAMILIES[family].model_type)
    model = AutoModelForCausalLM.from_config(FAMILIES[family])
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    parameters = dict(model.named_parameters())
    divided = [
        Divided(name=name, shape=shape, blocks=shape[0] if rows else 1)
        for name, shape in ((name, tuple(one.shape)) for name, one in parameters.items())
        for rows in [checkpoint_names.is_stack(name, shape) and shape[1] % ranks == 0]
    ]
    shards = [
        one.detach().chunk(ranks, dim=0 if how.blocks == 1 else 1)
        for one, how in zip(parameters.values(), divided, strict=True)
    ]
    numels = [
        [shard[rank].numel() if rank < len(shard) else 0 for shard in shards]
        for rank in range(ranks)
    ]
    held = tensor_specs(divided, numels, checkpoint_names, Dtype.FLOAT32)
    sent = {}
    for specs, parts in zip(held, shards, strict=True):
        of_rank = [
            one.reshape(-1).split([spec.shard_numels[rank] for spec in specs])
            for rank, one in enumerate(parts)
        ]
        for spec, pieces in zip(specs, zip(*of_rank, strict=True), strict=True):
            sent[spec.name] = torch.cat(pieces).view(spec.shape)
    for rank in range(ranks):
        assert [sum(spec.shard_numels[rank] for spec in specs) for specs in held] == numels[rank]
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


def test_a_bucket_never_ends_inside_a_parameter() -> None:
    model = AutoModelForCausalLM.from_config(FAMILIES["qwen3_moe"])
    shapes = [Divided(name=name, shape=tuple(one.shape)) for name, one in model.named_parameters()]
    numels = [[one.numel() for one in model.parameters()]]
    held = tensor_specs(shapes, numels, CheckpointNames("qwen3_moe"), Dtype.FLOAT32)
    layout = WireLayout(held, target_bytes=1024)
    assert len(layout.buckets) > 3
    assert [last for _, last in layout.buckets[:-1]] == [first for first, _ in layout.buckets[1:]]
    assert (layout.buckets[0][0], layout.buckets[-1][1]) == (0, len(layout.tensors))
    assert layout.parameters[-1][1] == len(held)
    for (first, last), (start, end) in zip(layout.parameters, layout.buckets, strict=True):
        inside = [spec for specs in held[first:last] for spec in specs]
        assert inside == list(layout.tensors[start:end])


def test_a_parameter_that_cannot_be_taken_apart_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = names.get_checkpoint_conversion_mapping("qwen3_moe")
    known[0].operations = known[0].operations[::-1]
    monkeypatch.setattr(names, "get_checkpoint_conversion_mapping", lambda model_type: known)
    with pytest.raises(InvalidInput, match="gate_up_proj is made from the checkpoint by"):
        CheckpointNames("x").parts("model.layers.0.mlp.experts.gate_up_proj", (4, 8, 8))
