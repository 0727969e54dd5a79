"""The sizing of a rank beside the memory that its own model, FSDP2 and update take."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.rank_memory.cases import Case
from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.kl import KlConfig
from services.trainer.config import TrainerConfig
from services.trainer.rank import memory_limits
from services.trainer.rank.memory_limits import check_memory
from services.trainer.sizing.held import between_steps
from services.trainer.sizing.host import offloaded
from services.trainer.sizing.rank_memory import GIB, rank_bytes

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.1


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Counted in a process of its own, which cannot take back the device that it makes up."""
    file = tmp_path_factory.mktemp("counted") / "rank_memory.json"
    command = [sys.executable, "-m", "benchmarks.rank_memory", "--small", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900, stdout=subprocess.DEVNULL)
    cases: list[dict[str, Any]] = json.loads(file.read_text())["cases"]
    return cases


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("what", ["held", "most", "host"])
def test_the_sizing_says_within_a_tenth_what_a_rank_takes(
    counted: list[dict[str, Any]], what: str
) -> None:
    assert len(counted) >= 8
    for case in counted:
        found, expected = case[f"{what}_gib"], case[f"{what}_gib_by_sizing"]
        assert expected == pytest.approx(found, rel=TOLERANCE), case


def test_memory_is_bounded_by_the_figure_that_check_prints() -> None:
    baseline = ROOT / "benchmarks" / "baselines" / "rank_memory.json"
    cases = json.loads(baseline.read_text())["cases"]
    assert {"Qwen/Qwen3-14B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B"} <= {
        case["model"] for case in cases
    }
    for case in cases:
        names = ("model", "ranks", "tokens", "trainer", "algorithm")
        training = Case(**{name: case[name] for name in names}).training
        sized = {"held": between_steps(training), "most": rank_bytes(training)}
        sized["host"] = offloaded(training)
        for what, expected in sized.items():
            assert expected / GIB == pytest.approx(case[f"{what}_gib"], rel=TOLERANCE), case
            # The figure beside it in docs/hardware.md is today's.
            assert case[f"{what}_gib_by_sizing"] == round(expected / GIB, 2), case


def test_a_rank_refuses_a_model_that_its_gpu_cannot_hold(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(total_memory=3 * 2**30)  # less than CUDA itself is counted with
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    algorithm = AlgorithmConfig(kl=KlConfig(coefficient=0.01))
    check_memory(TrainerConfig(model=str(tiny_model)), algorithm)
    config = TrainerConfig(model=str(tiny_model), device="cuda")
    with pytest.raises(InvalidInput, match=r"GiB of its GPU's 3\.0") as refused:
        check_memory(config, algorithm)
    assert refused.value.field == "trainer.model"
    gpu.total_memory = 80 * 2**30
    check_memory(config, algorithm)
    monkeypatch.setattr(memory_limits, "node_memory", lambda: 2 * 2**30)
    with pytest.raises(InvalidInput, match=r"3\.0 of process.* each, and a node has 2\.0"):
        check_memory(config, algorithm)


def test_the_memory_of_a_node_is_at_most_the_limit_of_its_container(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1234567\n")
    assert memory_limits.node_memory(tmp_path) == 1234567
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limits.node_memory(tmp_path) > 1234567
