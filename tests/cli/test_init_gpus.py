"""`millrace init --gpus`: a pair that `millrace check` calls good, or what would fit."""

import json
import re
from pathlib import Path

import pytest

from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.main import main
from services.protocol.yaml_text import load_yaml
from tests.deploy.many_tasks import many_tasks

FITTING = [
    ("1 24 Qwen3-0.6B", "--cpus 16", "shared"),
    ("1 24 Qwen3-4B", "--lora 32", "shared"),
    ("1 80 Qwen3-4B", "", "shared"),
    ("2 24 Qwen3-1.7B", "--placement shared", "shared"),
    ("2 24 Qwen3-4B", "--lora 16 --cpus 16", "separate"),
    ("8 80 Qwen3-8B", "--example deepcoder --cpus 32 --tier A", "separate"),
    ("8 24 Qwen3-8B", "", "shared"),
    ("8 80 Qwen2.5-72B", "--offload all", "separate"),
]
"""GPUs, GiB and model; other options; the placement that is chosen."""
REFUSED = [
    ("1 24 Qwen3-4B", "", ["--offload all", "--lora 32", "--model hf://Qwen/Qwen3-0.6B"]),
    ("1 16 Qwen3-32B", "", ["--model hf://Qwen/Qwen3-0.6B"]),
    ("2 24 Qwen3-8B", "--placement separate", ["--offload all", "--model hf://Qwen/Qwen3-1.7B"]),
    ("1 80 Qwen3-0.6B", "--placement separate", ["--placement shared", "--gpus 2"]),
    ("1 24 Qwen3-4B", "--lora 32 --host-gib 32", ["--model hf://Qwen/Qwen3-1.7B"]),
]
"""The same; and options among those that are said to fit."""


def asked(machine: str, options: str) -> list[str]:
    gpus, gib, model = machine.split()
    known = ["--gpus", gpus, "--gpu-gib", gib, "--model", f"hf://Qwen/{model}"]
    return ["init", *known, *options.split()]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test begins in an empty folder, and without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("millrace_tools.capacity.sizing.fetched_shape", lambda _: None)
    return tmp_path


@pytest.mark.parametrize(("machine", "options", "placement"), FITTING)
def test_the_pair_is_good_and_goes_together(
    machine: str, options: str, placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(machine, options)) == 0
    said = capsys.readouterr().out
    folder = Path(machine.split()[2].lower())
    assert {path.name for path in folder.iterdir()} == {"deploy.yaml", "run.yaml"}
    many_tasks(folder)
    check = said.splitlines()[-1].split()[1:]
    assert check[:2] == ["check", f"{folder}/deploy.yaml"]
    assert main(check) == 0
    figures = capsys.readouterr().out
    assert f"{folder}/deploy.yaml is good" in figures
    assert ("a GPU in a sampling turn" in figures) == (placement == "shared")
    args = {one["name"]: one["args"] for one in load_yaml(folder / "deploy.yaml")["applications"]}
    assert args["trainer"].get("placement", "separate") == placement
    assert args["rollout_server"].get("placement", "separate") == placement
    run = read_run_file(folder / "run.yaml")
    assert run.model == args["rollout_server"]["served_model_name"] == folder.name
    assert run.sampling.max_tokens < args["rollout_server"]["max_model_len"]


def test_the_comments_are_the_figures_that_check_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(asked("1 24 Qwen3-0.6B", "")) == 0
    many_tasks(Path("qwen3-0.6b"))
    check = capsys.readouterr().out.splitlines()[-1].split()[1:]
    text = Path("qwen3-0.6b/deploy.yaml").read_text()
    comment = re.sub(r"\n#  +", " ", text.partition("\n#   model: ")[2].partition("\nproxy")[0])
    assert main(check) == 0
    printed = " ".join(capsys.readouterr().out.partition("model: ")[2].split())
    assert printed == comment.strip()


@pytest.mark.parametrize(("machine", "options", "ways"), REFUSED)
def test_what_cannot_fit_is_refused_with_what_would(
    machine: str, options: str, ways: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(machine, options)) == 2
    said = capsys.readouterr().err
    assert f"error: --model: 'hf://Qwen/{machine.split()[2]} on {machine[0]} GPU" in said
    proposed = said.strip().partition("Each of these fits: ")[2].rstrip(".").split("; ")
    assert set(ways) <= set(proposed)
    assert not any(Path().iterdir())
    given = asked(machine, options)
    for way in proposed:
        words = way.split()
        changed = [*given, *words]  # the last of an option counts
        assert main([*changed[:1], f"way{proposed.index(way)}", *changed[1:]]) == 0, way


def test_a_folder_with_the_config_of_a_model_is_enough(tmp_path: Path) -> None:
    shape = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128}
    shape |= {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
    shape |= {"intermediate_size": 3072, "tie_word_embeddings": True, "vocab_size": 151936}
    model = tmp_path / "Mine-0.6B"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(shape))
    assert main(["init", "--gpus", "1", "--gpu-gib", "24", "--model", str(model)]) == 0
    args = {one["name"]: one["args"] for one in load_yaml("mine-0.6b/deploy.yaml")["applications"]}
    assert args["trainer"]["model"] == str(model)
    assert args["rollout_server"]["served_model_name"] == "mine-0.6b"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpus 1", "--gpu-gib: None -> Give it together with --gpus"),
        ("--gpus 1 --gpu-gib 24", "--model: None -> Give it together with --gpus and --gpu-gib"),
        ("--gpus 0 --gpu-gib 24 --model hf://Qwen/Qwen3-0.6B", "--gpus: 0 -> Give a positive"),
        ("--gpus 1 --gpu-gib -3 --model hf://Qwen/Qwen3-0.6B", "--gpu-gib: -3.0 -> Give a pos"),
        ("--gpus 1 --gpu-gib 24 --model hf://Qwen/Unknown-1B", "check the name and the network"),
        ("--gpus 1 --gpu-gib 24 --model Qwen/Qwen3-0.6B", "write hf://owner/name"),
        ("--gpus 1 --gpu-gib 24 --model hf://Qwen/Qwen3-0.6B --task x", "--task: 'x' -> Leave it"),
        ("--gpus 1 --gpu-gib 24 --model hf://Qwen/Qwen3-0.6B --cpus 4", "--cpus: 4 -> 1 ranks"),
        ("--gpus 1 --gpu-gib 24 --model hf://Qwen/Qwen3-0.6B --lora 600", "--lora: 600 -> "),
    ],
)
def test_bad_input_names_the_option_and_the_fix(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *options.split()]) == 2
    assert said in capsys.readouterr().err
    assert not any(Path().iterdir())


def test_a_pair_that_is_there_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked("1 24 Qwen3-0.6B", "")) == 0
    Path("qwen3-0.6b/run.yaml").unlink()
    Path("qwen3-0.6b/deploy.yaml").write_text("mine\n")
    assert main(asked("1 24 Qwen3-0.6B", "")) == 2
    assert "It is there already" in capsys.readouterr().err
    assert Path("qwen3-0.6b/deploy.yaml").read_text() == "mine\n"
    assert not Path("qwen3-0.6b/run.yaml").exists()
