"""A rank reads its slices of a checkpoint: the same model as transformers loads whole."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from services.protocol.errors import InvalidInput
from services.trainer.config import LoraConfig
from tests.trainer.conftest import RankForks, Ranks, together

SMALL = {
    "vocab_size": 50,  # which neither 2 nor 3 ranks with a head's and an expert's rows divide
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "qwen2": Qwen2Config(**SMALL),
    "qwen2_tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SMALL, head_dim=20),
    "llama": LlamaConfig(**SMALL, rope_parameters=ROPE),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=5),
    "qwen3_moe": Qwen3MoeConfig(
        **SMALL, head_dim=20, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8
    ),
}
SEQUENCES = [[3, 17, 25, 4, 9, 9, 41], [30, 2, 44], [7] * 40]


@pytest.fixture(scope="module")
def ranks_of(
    rank_groups: dict[int, Ranks], tiny_model: Path, rank_forks: RankForks
) -> Iterator[dict[int, Ranks]]:
    with together(tiny_model, rank_forks, 3) as three:
        yield rank_groups | {3: three}


def save(folder: Path, family: str, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(FAMILIES[family]).to(dtype).save_pretrained(folder, **options)
    return folder


def whole(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def scored(ranks: Ranks) -> dict[int, list[float]]:
    parts = ranks.call("logprobs", SEQUENCES)
    return {index: values for part in parts for index, values in part.items()}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_read_in_slices_is_the_one_that_transformers_loads(
    ranks_of, tmp_path, family, count
) -> None:
    folder = save(tmp_path / "model", family, max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    expected, ranks = whole(folder), ranks_of[count]
    ranks.load(folder)
    found = ranks.call("full_tensors")[0]
    named = dict(expected.named_parameters())
    assert found.keys() == named.keys()
    for name, values in found.items():
        assert torch.equal(torch.tensor(values), named[name]), name
    buffers = dict(expected.named_buffers())
    assert buffers
    for held in ranks.call("buffers"):
        assert held.keys() == buffers.keys()
        assert all(torch.equal(torch.tensor(held[name]), one) for name, one in buffers.items())
    logprobs = scored(ranks)
    for index, sequence in enumerate(SEQUENCES):
        ids = torch.tensor([sequence])
        with torch.no_grad():
            logs = expected(input_ids=ids).logits[0, :-1].log_softmax(-1)
        values = logs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
        assert logprobs[index] == pytest.approx(values, abs=2e-5)


def test_a_file_in_half_precision_becomes_float32_shards(ranks_of, tmp_path) -> None:
    folder = save(tmp_path / "model", "qwen3", torch.bfloat16)
    ranks_of[2].load(folder)
    named = dict(whole(folder).named_parameters())
    for name, values in ranks_of[2].call("full_tensors")[0].items():
        assert values.dtype == "float32"
        assert torch.equal(torch.tensor(values), named[name]), name


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def test_what_the_checkpoint_lacks_is_the_same_on_any_number_of_ranks(ranks_of, tmp_path) -> None:
    folder = save(tmp_path / "model", "qwen3")
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))
    heads = {}
    for count in (1, 2, 3):
        ranks_of[count].load(folder, seed=4)
        heads[count] = ranks_of[count].call("full_tensors")[0]["lm_head.weight"]
    assert (heads[1] == heads[2]).all()
    assert (heads[1] == heads[3]).all()
    assert heads[1].std() == pytest.approx(SMALL["initializer_range"], rel=0.1)
    ranks_of[2].load(folder, seed=5)
    assert (ranks_of[2].call("full_tensors")[0]["lm_head.weight"] != heads[2]).any()


def test_a_new_adapter_is_the_same_on_any_number_of_ranks(ranks_of, tmp_path) -> None:
    folder, made = save(tmp_path / "model", "qwen3"), {}
    for count in (1, 2, 3):
        ranks_of[count].load(folder, lora=LoraConfig(rank=3, alpha=6.0), dtype="bfloat16")
        made[count] = ranks_of[count].call("adapter")[0]
    assert len(made[1]) == 2 * 2 * 7
    for count in (2, 3):
        assert all((made[count][name] == values).all() for name, values in made[1].items())
    layers = [values for name, values in made[1].items() if name.endswith("lora_A")]
    assert len({values.tobytes() for values in layers}) == len(layers)
    assert all(not values.any() for name, values in made[1].items() if name.endswith("lora_B"))


def test_a_disk_that_fails_one_rank_is_told_by_all_of_them(ranks_of, tmp_path) -> None:
    folder, ranks = save(tmp_path / "model", "qwen3"), ranks_of[3]
    ranks.call("fail_reading", 1)
    errors = ranks.errors("load", ranks.config(folder))
    assert {type(error) for error in errors} == {InvalidInput}
    assert {str(error) for error in errors} == {str(errors[0])}
    assert "model.safetensors" in str(errors[0])
    assert "Input/output error" in str(errors[0])
    ranks.call("fail_reading", -1)
    ranks.load(folder)  # they still work together


def test_a_rank_reads_its_part_and_says_how_far_it_is(ranks_of, tmp_path) -> None:
    folder = save(tmp_path / "model", "qwen3", torch.bfloat16)
    size = sum(one.nbytes for one in load_file(folder / "model.safetensors").values())
    told = ranks_of[2].call("progress_of_load", ranks_of[2].config(folder))
    assert sum(one[-1][1] for one in told) == size
    for one in told:
        assert [done for done, _ in one] == sorted({done for done, _ in one})
        assert one[-1][0] == one[-1][1]


def sparse_model(folder: Path, config: LlamaConfig) -> int:
    """A checkpoint in bfloat16 of zeros that take no disk; returns its number of parameters."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    header, end = {}, 0
    for name, one in model.named_parameters():
        start, end = end, end + 2 * one.numel()
        shape = list(one.shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end // 2


def test_a_rank_holds_its_shards_and_one_tensor_while_it_loads(four_ranks, tmp_path) -> None:
    config = LlamaConfig(
        vocab_size=20_000,
        hidden_size=4096,
        intermediate_size=16_384,
        num_hidden_layers=5,
        num_attention_heads=32,
    )
    parameters = sparse_model(tmp_path, config)
    assert parameters > 1.5e9
    lora = LoraConfig(rank=1, alpha=1.0, targets=("q_proj",), push="adapter")
    settings = {"dtype": "bfloat16", "lora": lora, "canary_sequences": 0}
    peaks = four_ranks.call("peak_of_load", four_ranks.config(tmp_path, **settings))
    shard, tensor = 2 * parameters / 4, 2 * config.hidden_size * config.intermediate_size
    assert all(0.95 * shard < peak < shard + tensor for peak in peaks), (peaks, shard, tensor)


def truncate(folder: Path) -> str:
    file = sorted(folder.glob("*.safetensors"))[-1]
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 8)
    return f"{file.name} is damaged: it has .* bytes and should have"


def cut_the_header(folder: Path) -> str:
    file = sorted(folder.glob("*.safetensors"))[0]
    with file.open("r+b") as opened:
        opened.truncate(100)
    return f"{file.name} is damaged: it is shorter than its header"


def break_the_header(folder: Path) -> str:
    file = sorted(folder.glob("*.safetensors"))[0]
    with file.open("r+b") as opened:
        opened.seek(8)
        opened.write(b"[")
    return f"{file.name} is damaged: its header cannot be read"


def remove_a_file(folder: Path) -> str:
    file = sorted(folder.glob("*.safetensors"))[1]
    file.unlink()
    return f"{file.name} is missing"


def name_a_tensor_that_is_nowhere(folder: Path) -> str:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    file = index["weight_map"]["lm_head.weight"]
    index["weight_map"]["model.layers.0.nothing.weight"] = file
    path.write_text(json.dumps(index))
    return f"{file} lacks model.layers.0.nothing.weight"


def break_the_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text("{")
    return r"model\.safetensors\.index\.json is damaged"


def halve_the_vocabulary(folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 25}))
    return r"lm_head\.weight has the shape \[50, 40\] in .* makes it \[25, 40\]"


def tie_what_differs(folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    return "set tie_word_embeddings to false"


def quantize(folder: Path) -> str:
    path = folder / "config.json"
    quantized = {"quantization_config": {"quant_method": "fp8"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | quantized))
    return "Its weights are quantized"


DAMAGES = (
    truncate,
    cut_the_header,
    break_the_header,
    remove_a_file,
    name_a_tensor_that_is_nowhere,
    break_the_index,
    halve_the_vocabulary,
    tie_what_differs,
    quantize,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_cannot_be_used_is_refused_by_the_name_of_what_is_wrong(
    ranks_of, tiny_model, tmp_path, damage
) -> None:
    good = save(tmp_path / "good", "qwen3", max_shard_size="30KB")
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    message = damage(bad)
    with pytest.raises(InvalidInput, match=message) as refused:
        ranks_of[2].load(bad)
    assert (refused.value.field, refused.value.value) == ("trainer.model", str(bad))
    ranks_of[2].load(good)  # the ranks still work together


def test_experts_that_are_not_all_there_are_refused(ranks_of, tmp_path) -> None:
    folder = save(tmp_path / "model", "qwen3_moe")
    gone = "model.layers.1.mlp.experts.4.up_proj.weight"
    edit(folder, lambda tensors: tensors.pop(gone))
    with pytest.raises(InvalidInput, match=r"layers\.1\.mlp\.experts\.gate_up_proj is made of 5"):
        ranks_of[2].load(folder)


def test_integers_are_refused_as_weights(ranks_of, tmp_path) -> None:
    folder = save(tmp_path / "model", "qwen3")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)

    edit(folder, change)
    with pytest.raises(InvalidInput, match=r"lm_head\.weight in .* is quantized"):
        ranks_of[2].load(folder)
