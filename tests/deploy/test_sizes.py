"""The arithmetic in the deployment files' comments is that of their values."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub.errors import LocalEntryNotFoundError

from millrace_tools.capacity.capacity import Nodes, NodeType
from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.sizing import Sizing, sizing_of
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.main import main
from millrace_tools.sizes.shipped import SHIPPED, shipped_pair
from millrace_tools.sizes.text import with_figures
from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.kl import KlConfig
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.sizing.held import gradients, moments, parameters
from services.trainer.sizing.rank_memory import rank_gib
from services.trainer.sizing.remedies import remedies
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training
from tests.deploy.many_tasks import many_tasks

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
MODELS = {
    "hf://Qwen/Qwen3-4B": QWEN3
    | {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"intermediate_size": 9728, "tie_word_embeddings": True},
    "hf://Qwen/Qwen3-14B": QWEN3
    | {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40}
    | {"intermediate_size": 17408},
    "hf://Qwen/Qwen3-32B": QWEN3
    | {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64}
    | {"intermediate_size": 25600},
}
"""What these models' config.json says."""
SIZES = {"cluster.yaml": 1, "cluster-4-nodes.yaml": 4, "cluster-32-nodes.yaml": 32}


MAKER = runpy.run_path(str(DEPLOY / "make_sizes.py"))
MADE = sorted(MAKER["SIZES"])
PAIRS = {name: shipped_pair(name, ROOT) for name in SHIPPED}
"""Texts of deployment and run file by file name, by the name of the pair."""
FILES = [*SIZES, *MADE, *(f"{name}.yaml" for name in PAIRS)]
"""Every deployment file for GPUs."""


def _file(name: str) -> Path:
    return DEPLOY / ("." if name in SIZES else "sizes") / name


def _sizing(name: str) -> Sizing:
    sizing: Sizing = MAKER["sizing"](_file(name), _file(name).read_text())
    return sizing


@pytest.mark.parametrize("name", FILES)
def test_the_comments_say_what_the_values_amount_to(name: str) -> None:
    text = _file(name).read_text()
    assert with_figures(text, _sizing(name)) == text, "run `python deploy/make_sizes.py`"


@pytest.mark.parametrize("name", MADE)
def test_a_size_is_as_its_maker_makes_it(name: str) -> None:
    made = MAKER["made"](name, MAKER["SIZES"][name])
    assert _file(name).read_text() == made, "run `python deploy/make_sizes.py`"


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_as_the_sizing_chooses_it(name: str) -> None:
    for file, text in PAIRS[name].items():
        assert _file(file).read_text() == text, "run `python deploy/make_sizes.py`"


def test_no_other_file_is_among_the_sizes() -> None:
    pairs = {file for texts in PAIRS.values() for file in texts}
    assert {path.name for path in (DEPLOY / "sizes").iterdir()} == pairs | set(MADE)


def test_the_pairs_are_for_one_gpu_two_and_eight_in_both_placements() -> None:
    made = {(one.hardware.gpus, one.hardware.gpu_gib, one.placement) for one in SHIPPED.values()}
    assert made >= {(1, 24, "shared"), (1, 80, "shared"), (2, 24, "shared"), (2, 24, "separate")}
    assert made >= {(8, 80, "shared"), (8, 80, "separate")}
    assert {16, 32} <= {one.hardware.cpus for one in SHIPPED.values()}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_asks_for_no_more_cores_and_gpus_than_its_node_has(name: str) -> None:
    hardware = SHIPPED[name].hardware
    node = NodeType(name="node", count=1, resources={"CPU": hardware.cores, "GPU": hardware.gpus})
    assert Deployment.read(_file(f"{name}.yaml")).check_nodes(Nodes(types=(node,))) == []


@pytest.mark.parametrize(("name", "nodes"), SIZES.items())
def test_a_cluster_file_uses_the_gpus_that_it_is_for(name: str, nodes: int) -> None:
    sizing = _sizing(name)
    training = sizing.trainer.world_size * sizing.trainer.gpus_per_rank
    assert training + sizing.rollout.replicas * sizing.rollout.gpus == 8 * nodes


@pytest.mark.parametrize("name", FILES)
def test_each_file_fits_its_gpus_with_a_tenth_to_spare(name: str) -> None:
    sizing = _sizing(name)
    assert sizing.most_gib <= 0.9 * sizing.gpu_gib
    assert list(sizing.problems()) == []


def _training(name: str, **changes: Any) -> Training:
    training = _sizing(name).training
    settings = training.trainer.model_dump() | changes
    return replace(training, trainer=TrainerConfig.model_validate(settings))


@pytest.mark.parametrize("name", [*SIZES, *MADE])
def test_check_calls_each_file_good(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(_file(name))]) == 0
    assert f"{name} is good" in capsys.readouterr().out


@pytest.mark.parametrize("name", PAIRS)
def test_check_calls_each_pair_good(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _file(f"{name}.run.yaml").read_text()
    run = tmp_path / "run.yaml"
    run.write_text(re.sub(r"task_file: .*", f"task_file: {many_tasks(tmp_path)}", text))
    gib = str(SHIPPED[name].hardware.gpu_gib)
    asked = ["--run", str(run), "--figures", "--gpu-gib", gib]
    assert main(["check", str(_file(f"{name}.yaml")), *asked]) == 0
    said = capsys.readouterr().out
    assert f"{name}.yaml is good" in said
    for line in ("a GPU in a sampling turn", "a GPU in a train turn", "kept_on_gpu that would fit"):
        assert (line in said) == (SHIPPED[name].placement == "shared")


SYNC_OFF = {
    "cluster-4-nodes.yaml": (110.9, {"world_size": 8, "micro_batch_tokens": 32768}),
    "cluster-32-nodes.yaml": (
        175.5,
        {"world_size": 64, "model_copies": 4, "micro_batch_tokens": 16384},
    ),
}
"""Files that were called good while each rank kept whole gradients between micro-batches: what a
rank then needs in GiB, and the settings that it comes from."""


def _arguments(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Of an application of a deployment file, to be changed in place."""
    (found,) = (one["args"] for one in data["applications"] if one["name"] == name)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", SYNC_OFF)
def test_check_refuses_whole_gradients_on_each_rank_with_the_figure_and_three_ways_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed, settings = SYNC_OFF[name]
    data = yaml.safe_load(_file(name).read_text())
    trainer = _arguments(data, "trainer")
    trainer |= {"gradient_sync": "last_micro_batch", "context_parallel": 1} | settings
    _arguments(data, "rollout_server")["max_model_len"] = settings["micro_batch_tokens"]
    file = tmp_path / name
    file.write_text(yaml.safe_dump(data))
    for figures in ([], ["--figures"]):
        assert main(["check", str(file), *figures]) == 2
        refused = capsys.readouterr().err
        assert f"needs about {needed:.1f} GiB of its GPU's 80.0" in refused
        ways = refused.partition("cheapest first: ")[2].split("; ")
        assert [way.partition(":")[0] for way in ways] == [
            "gradient_sync",
            "activation_offload",
            "lora",
        ]
    trainer["gradient_sync"] = "every_micro_batch"
    file.write_text(yaml.safe_dump(data))
    assert main(["check", str(file)]) == 0


def test_a_row_that_is_longer_than_a_micro_batch_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = yaml.safe_load(_file("cluster-32-nodes.yaml").read_text())
    trainer = _arguments(data, "trainer")
    trainer |= {"micro_batch_tokens": 16384, "context_parallel": 1}
    file = tmp_path / "long.yaml"
    file.write_text(yaml.safe_dump(data))
    assert main(["check", str(file), "--gpu-gib", "76"]) == 2
    refused = capsys.readouterr().err
    assert "76.0 for a row of 32,768 tokens, the engines' max_model_len" in refused
    assert "context_parallel: 2;" in refused
    trainer["context_parallel"] = 2
    file.write_text(yaml.safe_dump(data))
    assert main(["check", str(file), "--gpu-gib", "76"]) == 0


@pytest.mark.parametrize("gpu_gib", [16, 24, 40])
@pytest.mark.parametrize("name", ["cluster.yaml", "cluster-4-nodes.yaml"])
def test_each_setting_that_is_proposed_makes_the_model_fit(name: str, gpu_gib: float) -> None:
    training = _training(name, gradient_sync="last_micro_batch", activation_checkpointing=False)
    proposed = remedies(training, gpu_gib)
    assert 1 <= len(proposed) <= 3
    for text in proposed:
        changes = yaml.safe_load("\n".join(text.split(" with ")))
        assert rank_gib(_training(name, **(training.trainer.model_dump() | changes))) <= gpu_gib


@pytest.mark.parametrize("gpu_gib", [16, 24, 40])
def test_nothing_is_proposed_that_muon_does_not_go_with(gpu_gib: float) -> None:
    plain = _training("cluster.yaml", gradient_sync="last_micro_batch")
    training = replace(plain, algorithm=AlgorithmConfig(optimizer="muon"))
    proposed = remedies(training, gpu_gib)
    assert proposed
    keys = {part.partition(":")[0] for text in proposed for part in text.split(" with ")}
    assert keys.isdisjoint({"lora", "offload"})


def test_a_reference_and_a_critic_are_counted_with_the_run_that_needs_them() -> None:
    sizing = _sizing("cluster.yaml")
    plain = Training(shape=sizing.shape, trainer=sizing.trainer)
    kl = AlgorithmConfig(kl=KlConfig(coefficient=0.01))
    both = AlgorithmConfig(advantage="gae", kl=KlConfig(coefficient=0.01))
    alone, with_kl, with_both = (
        rank_gib(Training(shape=sizing.shape, trainer=sizing.trainer, algorithm=one))
        for one in (plain.algorithm, kl, both)
    )
    shard = sizing.parameters / sizing.trainer.shards / 2**30
    assert with_kl - alone >= 4 * shard
    assert with_both - with_kl >= 12 * shard


def test_a_cache_that_holds_no_whole_answer_is_said() -> None:
    sizing = _sizing("cluster.yaml")
    long = sizing.rollout.model_copy(update={"max_model_len": 1_000_000})
    (engine,) = Sizing(**(vars(sizing) | {"rollout": long})).problems()
    assert "less than max_model_len 1,000,000" in engine


@pytest.mark.parametrize(
    ("model", "billions"),
    [("hf://Qwen/Qwen3-4B", 4.02), ("hf://Qwen/Qwen3-14B", 14.77), ("hf://Qwen/Qwen3-32B", 32.76)],
)
def test_parameters_counted_from_the_shape_are_those_that_the_models_have(
    model: str, billions: float
) -> None:
    counted = ModelShape.of(MODELS[model]).parameters
    assert counted is not None
    assert counted / 1e9 == pytest.approx(billions, abs=0.01)


def test_figures_need_no_files_of_a_model_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_tools.capacity.sizing.shape_of", lambda _: None)
    sizing = sizing_of(Deployment.read(DEPLOY / "cluster.yaml").configs, None, 80)
    assert sizing.shape == ModelShape.of(MODELS["hf://Qwen/Qwen3-4B"])


def test_figures_fetch_the_shape_of_another_model_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODELS["hf://Qwen/Qwen3-14B"]))
    asked = []

    def fetch(repository: str, file: str, **_: object) -> str:
        asked.append((repository, file))
        if repository == "mine/away":
            raise LocalEntryNotFoundError("no network")
        return str(config)

    monkeypatch.setattr("millrace_tools.capacity.model_shape.hf_hub_download", fetch)
    configs = dict(Deployment.read(DEPLOY / "cluster.yaml").configs)
    trainer = configs["trainer"]
    configs["trainer"] = trainer.model_copy(update={"model": "hf://mine/model"})
    assert sizing_of(configs, None, 80).shape == ModelShape.of(MODELS["hf://Qwen/Qwen3-14B"])
    assert asked == [("mine/model", "config.json")]
    configs["trainer"] = trainer.model_copy(update={"model": "hf://mine/away"})
    with pytest.raises(InvalidInput, match="cannot be fetched"):
        sizing_of(configs, None, 80)


def test_an_adapter_takes_the_place_of_gradients_and_moments() -> None:
    lora = LoraConfig(rank=32, alpha=64, push="adapter")
    training = _training("cluster.yaml", lora=lora.model_dump())
    held = (parameters(training) + gradients(training) + moments(training)) * 4
    assert held == pytest.approx(2 * training.parameters + 16 * 66_060_288)


def test_a_mixture_counts_all_its_experts_and_those_that_a_token_meets() -> None:
    shape = KNOWN_SHAPES["Qwen/Qwen3-30B-A3B"]
    assert shape.parameters is not None
    assert shape.active_parameters is not None
    assert shape.parameters / 1e9 == pytest.approx(30.5, abs=0.1)
    assert shape.active_parameters / 1e9 == pytest.approx(3.3, abs=0.1)


def test_parameters_of_experts_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ModelShape.of(MODELS["hf://Qwen/Qwen3-4B"] | {"num_experts": 128})
    assert shape.parameters is None
    monkeypatch.setattr("millrace_tools.capacity.sizing.shape_of", lambda _: shape)
    with pytest.raises(InvalidInput, match="cannot be counted"):
        sizing_of(Deployment.read(DEPLOY / "cluster.yaml").configs, None, 80)


def test_with_relays_a_node_holds_the_weights_once_and_its_engines_none() -> None:
    sizing = _sizing("cluster-4-nodes.yaml")
    assert sizing.relays
    without = replace(sizing, relays=False)
    shared = dict(sizing.figures())
    alone = dict(without.figures())
    assert "staged weights" not in shared["host memory of an engine"]
    assert shared["host memory of a node's relay"].startswith("2 x 27.5 of staged weights")
    assert alone["host memory of an engine"].startswith("1 x 27.5 of staged weights")
    assert "host memory of a node's relay" not in alone
    assert without.engine.host_gib - sizing.engine.host_gib == sizing.engine.weights_gib
    kept = without.rollout.model_copy(update={"keep_copy": True})
    assert replace(without, rollout=kept).engine.staged_versions == 2
