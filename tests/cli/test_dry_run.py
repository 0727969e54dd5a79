"""`millrace run --dry-run`: what a run would be, and what it could never be."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import yaml
from safetensors.numpy import save_file

from millrace_tools.capacity.model_shape import parameters_of
from millrace_tools.main import main
from tests.mounts import pretend_mounts

Changed = Callable[[str, str], Path]
LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"
TWO = {"trainer": "world_size", "rollout_server": "replicas"}


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


SHAPE = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "head_dim": 32,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The laptop's deployment with two of each, and a model of 48 parameters."""
    tmp_path = tmp_path_factory.mktemp("laptop")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    tensors = {"a": numpy.zeros((4, 10)), "b": numpy.zeros(8)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    data = yaml.safe_load(LAPTOP.read_text())
    for application in data["applications"]:
        if "model" in application["args"]:
            application["args"]["model"] = str(tmp_path / "model")
            application["args"][TWO[application["name"]]] = 2
    (tmp_path / "laptop.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "laptop.yaml"


def test_a_plan_takes_any_name_of_the_model(
    changed: Changed, laptop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = yaml.safe_load(laptop.read_text())
    (rollout,) = (one for one in data["applications"] if one["name"] == "rollout_server")
    rollout["args"]["served_model_aliases"] = ["small"]
    (tmp_path / "aliased.yaml").write_text(yaml.safe_dump(data))
    file = changed("model: m", "model: small\nsampling: {max_tokens: 16}\nbatch_groups: 1")
    file.write_text(file.read_text().replace("batch_groups: 2\n", ""))
    asked = ["run", str(file), "--dry-run", "--deployment", str(tmp_path / "aliased.yaml")]
    assert main(asked) == 0, capsys.readouterr().err


def test_a_plan_shows_the_arithmetic_and_starts_nothing(
    changed: Changed, laptop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "model: tiny_code\nsampling: {max_tokens: 16}\nbatch_groups: 1"
    file = changed("model: m", more)
    file.write_text(file.read_text().replace("batch_groups: 2\n", ""))
    assert main(["run", str(file), "--dry-run", "--deployment", str(laptop)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "1 to learn from, 1 held out",
        "2 steps x 1 = 2, 2.00 times the tasks",
        "1 groups x 2 = 2 trajectories, at most 32 sampled tokens",
        "at most 1 groups = 2 answers at a time",
        "0 versions, on_stale: wait",
        "heldout: 1 tasks at temperature 0",
        "2 ranks on cpu, 1 optimizer steps, each of at most 1 micro-batches a rank",
        "2 on cpu, 512 answers at a time, prompt and answer at most 256 tokens",
        "every 10 steps and at the end, 2 kept, 0.00 GB each",
    ):
        assert part in shown
    assert parameters_of(str(laptop.parent / "model")) == 48


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        (
            "{preset: dapo}",
            (
                "sync: unfinished wait, dynamic sampling",
                "dapo: advantage grpo",
                "clip, ratio current/behaviour from 0.8 to 1.28, token_mean",
                "from 0 at 205 tokens to 1 at 256 and beyond",
                "left by preset",
            ),
        ),
        (
            "{preset: gspo, ratio_anchor: proximal, minibatches: 4, warmup_steps: 2}",
            (
                "gspo, ratio current/proximal of whole answers from 0.9997 to 1.0004",
                "by token, truncated at 2",
                "4 a train step, learning rate 1e-06, warm-up over 2",
            ),
        ),
        ("{preset: dr_grpo}", ("dr_grpo: advantage dr_grpo", "fixed_length 256")),
        ("{preset: rloo}", ("reinforce, no clip, fixed_length 1",)),
        ("{preset: raft}", ("raft: advantage best", "reinforce, no clip, token_mean")),
        (
            "{kl: {coefficient: 0.1, aggregation: sequence_mean}}",
            ("0.1 x k3, in the loss, sequence_mean",),
        ),
        ("{preset: cispo}", ("weight current/behaviour from 0 to 5",)),
        (
            "{kl: {coefficient: 0.1}, mask_truncated: true}",
            ("no preset: advantage grpo", "left out of the loss", "0.1 x k3, in the loss"),
        ),
    ],
)
def test_a_plan_shows_the_algorithm_as_it_was_resolved(
    changed: Changed, capsys: pytest.CaptureFixture[str], algorithm: str, shown: tuple[str, ...]
) -> None:
    file = changed("batch_groups: 2", f"batch_groups: 1\nalgorithm: {algorithm}")
    file.write_text(file.read_text().replace("group_size: 2", "group_size: 8"))
    assert main(["run", str(file), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in shown:
        assert part in said
    assert ("left by preset" in said) == ("preset" in algorithm)


@pytest.mark.parametrize(
    ("before", "after", "field", "fix"),
    [
        ("model: m", "model: m", "model: 'm'", "serve tiny_code"),
        ("steps: 2", "steps: 2\nsampling: {max_tokens: 256}", "sampling.max_tokens: 256", "less"),
        (
            "steps: 2",
            "steps: 2\nalgorithm: {warmup_steps: 2}",
            "algorithm.warmup_steps: 2",
            "fewer",
        ),
        (
            "steps: 2",
            "steps: 2\nalgorithm: {minibatches: 9}",
            "algorithm.minibatches: 9",
            "at most",
        ),
        (
            "steps: 2",
            "steps: 2\nalgorithm: {minibatches: 4}",
            "batch_groups: 2",
            "2 groups of ranks",
        ),
        (
            "steps: 2",
            "steps: 2\nalgorithm: {overlong_limit: 900}",
            "algorithm.overlong_limit: 900",
            "at most",
        ),
        ("steps: 2", "steps: 2\nrollout_timeout_s: 0.1", "rollout_timeout_s: 0.1", "longer"),
        ("batch_groups: 2", "batch_groups: 3", "batch_groups: 3", "1 tasks to learn from"),
        ("group_size: 2", "group_size: 300", "group_size: 300", "max_choices, 256"),
        ("steps: 2", "steps: 2\ndeterminism: true", "determinism: True", "rollout servers' args"),
    ],
)
def test_what_cannot_go_well_is_refused_by_field_value_and_fix(
    changed: Changed,
    laptop: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    field: str,
    fix: str,
) -> None:
    file = changed(before, after)
    assert main(["run", str(file), "--dry-run", "--deployment", str(laptop)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith("error: ") and " -> " in line for line in errors)
    assert any(line.startswith(f"error: {field}") and fix in line for line in errors), errors
    assert main(["check", str(laptop), "--run", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: ")
    assert " -> " in error


def test_ranks_that_share_rows_are_one_group_in_the_plan(
    changed: Changed, laptop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = yaml.safe_load(laptop.read_text())
    (trainer,) = (one["args"] for one in data["applications"] if one["name"] == "trainer")
    trainer["context_parallel"] = 2
    sharing = tmp_path / "sharing.yaml"
    sharing.write_text(yaml.safe_dump(data))
    file = changed("steps: 2", "steps: 2\nalgorithm: {minibatches: 4}")
    main(["run", str(file), "--dry-run", "--deployment", str(sharing)])
    assert "groups of ranks" not in capsys.readouterr().err


def test_check_lets_a_run_file_through_that_the_deployment_can_run(
    changed: Changed,
    laptop: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = changed("model: m", "model: tiny_code\nsampling: {max_tokens: 16}\nbatch_groups: 1")
    file.write_text(file.read_text().replace("batch_groups: 2\n", ""))
    assert main(["check", str(laptop), "--run", str(file)]) == 0
    assert "run_root" not in capsys.readouterr().out
    pretend_mounts(monkeypatch, tmp_path / "mountinfo", "/ lustre flock")
    assert main(["check", str(laptop), "--run", str(file)]) == 0
    assert (
        "run_root, seen from here: / is a network file system (lustre)" in capsys.readouterr().out
    )
    assert main(["check", str(laptop), "--figures"]) == 2
    assert "about GPUs" in capsys.readouterr().err


def test_without_a_deployment_the_run_file_alone_is_looked_at(
    changed: Changed, capsys: pytest.CaptureFixture[str]
) -> None:
    file = changed("batch_groups: 2", "batch_groups: 1")
    assert main(["run", str(file), "--dry-run"]) == 0
    assert "--deployment FILE also checks" in capsys.readouterr().out
    rays = str(LAPTOP.parent / "ray" / "aws.yaml")
    assert main(["run", str(file), "--dry-run", "--deployment", rays]) == 2
