"""The arithmetic in the deployment files' comments is that of their values."""

import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub.errors import LocalEntryNotFoundError

from millrace_tools.capacity.model_shape import ModelShape
from millrace_tools.capacity.sizing import Sizing, sizing_of
from millrace_tools.deploy.deployment import Deployment
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.trainer.config import LoraConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
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


def _sizing(name: str) -> Sizing:
    text = (DEPLOY / name).read_text()
    configs = Deployment.read(DEPLOY / name).configs
    (run_file,) = re.findall(r"^# For .*? and (examples/\S+?\.yaml)", text, re.MULTILINE)
    changes = {
        key: yaml.safe_load(value)
        for key, value in re.findall(r"`(model|batch_groups): (\S+)`", text)
    }
    run = RunConfig.from_yaml(ROOT / run_file).model_copy(update=changes)
    assert run.model == configs["rollout_server"].served_model_name
    return Sizing(
        shape=ModelShape.of(MODELS[configs["trainer"].model]),
        trainer=configs["trainer"],
        rollout=configs["rollout_server"],
        reward=configs["reward_service"],
        gpu_gib=80,
        run=run,
    )


@pytest.mark.parametrize("name", SIZES)
def test_the_comments_say_what_the_values_amount_to(name: str) -> None:
    comments = re.findall(r"^#+ ?(.*)$", (DEPLOY / name).read_text(), re.MULTILINE)
    said = " ".join(" ".join(comments).split())
    for figure, value in _sizing(name).figures():
        assert f"{figure}: {value}" in said


@pytest.mark.parametrize(("name", "nodes"), SIZES.items())
def test_a_size_uses_the_gpus_that_it_is_for_and_fits_them(name: str, nodes: int) -> None:
    sizing = _sizing(name)
    training = sizing.trainer.world_size * sizing.trainer.gpus_per_rank
    assert training + sizing.rollout.replicas * sizing.rollout.gpus == 8 * nodes
    assert list(sizing.problems()) == []


def test_what_does_not_fit_a_gpu_is_said() -> None:
    sizing = _sizing("cluster.yaml")
    small = Sizing(**(vars(sizing) | {"gpu_gib": 24}))
    (rank,) = small.problems()
    assert "a rank needs about" in rank
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
    sizing = _sizing("cluster.yaml")
    lora = LoraConfig(rank=32, alpha=64, push="adapter")
    trainer = sizing.trainer.model_copy(update={"lora": lora})
    adapted = Sizing(**(vars(sizing) | {"trainer": trainer})).rank_parts
    held = adapted["model and adapter over 4"]
    assert held * 2**30 * 4 == pytest.approx(2 * sizing.parameters + 16 * 66_060_288)


def test_parameters_of_experts_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ModelShape.of(MODELS["hf://Qwen/Qwen3-4B"] | {"num_experts": 128})
    assert shape.parameters is None
    monkeypatch.setattr("millrace_tools.capacity.sizing.shape_of", lambda _: shape)
    with pytest.raises(InvalidInput, match="it has experts"):
        sizing_of(Deployment.read(DEPLOY / "cluster.yaml").configs, None, 80)
