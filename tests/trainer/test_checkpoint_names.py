"""Parameters under the names and in the shapes of their checkpoint."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from services.protocol.errors import InvalidInput
from services.protocol.weights.weights import Dtype
from services.trainer.checkpoints import names
from services.trainer.checkpoints.names import CheckpointNames
from services.trainer.snapshot.snapshot import WireLayout, tensor_specs

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


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_ranks_send_is_what_the_model_would_save(
    family: str, ranks: int, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_config(FAMILIES[family])
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    parameters = dict(model.named_parameters())
    shards = [one.detach().chunk(ranks) for one in parameters.values()]
    numels = [
        [shard[rank].numel() if rank < len(shard) else 0 for shard in shards]
        for rank in range(ranks)
    ]
    shapes = [(name, tuple(one.shape)) for name, one in parameters.items()]
    held = tensor_specs(shapes, numels, CheckpointNames(model.config.model_type), Dtype.FLOAT32)
    sent = {}
    for specs, parameter in zip(held, parameters.values(), strict=True):
        pieces = parameter.detach().reshape(-1).split([sum(spec.shard_numels) for spec in specs])
        for spec, piece in zip(specs, pieces, strict=True):
            sent[spec.name] = piece.view(spec.shape)
    for rank in range(ranks):
        assert [sum(spec.shard_numels[rank] for spec in specs) for specs in held] == numels[rank]
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


def test_a_bucket_never_ends_inside_a_parameter() -> None:
    model = AutoModelForCausalLM.from_config(FAMILIES["qwen3_moe"])
    shapes = [(name, tuple(one.shape)) for name, one in model.named_parameters()]
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
