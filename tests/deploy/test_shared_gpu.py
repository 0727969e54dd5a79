"""A GPU that ranks and engines use in turn: what each turn holds, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace_tools.capacity.shared_gpu import SLEEPING_GIB, SharedGpu
from millrace_tools.capacity.sizing import Sizing, sizing_of
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.main import main
from services.trainer.sizing.held import between_steps, parameters
from services.trainer.sizing.host import host_parts
from services.trainer.sizing.rank_memory import CONTEXT_GIB, GIB

SIZES = Path(__file__).parents[2] / "deploy" / "sizes"
SMALL = "1-gpu-24-gib-0.6b.yaml"
Check = Callable[..., tuple[int, str, str]]


def _changed(name: str, trainer: dict[str, Any], rollout: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((SIZES / name).read_text())
    for one in data["applications"]:
        one["args"] |= {"trainer": trainer, "rollout_server": rollout}.get(one["name"], {})
    return data


def _sizing(name: str, gpu_gib: float = 24.0, **changes: dict[str, Any]) -> Sizing:
    data = _changed(name, changes.get("trainer", {}), changes.get("rollout", {}))
    return sizing_of(Deployment.check(data, source=name).configs, None, gpu_gib)


def _shared(sizing: Sizing) -> SharedGpu:
    assert sizing.shared_gpu is not None
    return sizing.shared_gpu


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """`millrace check` of a size with other settings: exit status, output and error."""

    def checked(
        name: str,
        *options: str,
        trainer: dict[str, Any] | None = None,
        rollout: dict[str, Any] | None = None,
    ) -> tuple[int, str, str]:
        file = tmp_path / name
        file.write_text(yaml.safe_dump(_changed(name, trainer or {}, rollout or {})))
        status = main(["check", str(file), "--gpu-gib", "24", *options])
        said = capsys.readouterr()
        return status, said.out, said.err

    return checked


def test_a_sampling_turn_holds_the_engines_share_the_context_and_what_the_rank_keeps() -> None:
    for kept, size in {"none": 0.0, "parameters": 0.5, "all": 1.5}.items():
        sizing = _sizing(SMALL, trainer={"kept_on_gpu": kept})
        assert sum(_shared(sizing).sampling().values()) == pytest.approx(
            0.84 * 24 + CONTEXT_GIB + size * 2 * parameters(sizing.training) / GIB
        )


def test_a_train_turn_holds_the_rank_the_sleeping_engine_and_the_weights_that_stay() -> None:
    alone = _sizing(SMALL)
    beside = _sizing(SMALL, rollout={"kept_on_gpu": "weights"})
    needed = alone.rank_gib + SLEEPING_GIB
    assert sum(_shared(alone).training_turn().values()) == pytest.approx(needed)
    assert sum(_shared(beside).training_turn().values()) == pytest.approx(
        needed + alone.parameters * 2 / GIB
    )


def test_the_engines_weights_on_a_gpu_are_those_of_one_worker() -> None:
    sizing = _sizing("8-gpus-32b-shared.yaml", 80.0, rollout={"kept_on_gpu": "weights"})
    assert sizing.rollout.tensor_parallel_size == 2
    weights = _shared(sizing).beside_rank()["its weights"]
    assert weights == pytest.approx(sizing.parameters * 2 / GIB / 2)


@pytest.mark.parametrize("kept", ["none", "parameters", "all"])
def test_the_state_that_leaves_the_gpu_is_counted_on_the_host(kept: str) -> None:
    training = _sizing(SMALL, trainer={"kept_on_gpu": kept}).training
    stays = {"none": 0.0, "parameters": parameters(training), "all": between_steps(training)}[kept]
    parked = host_parts(training).get("state that waits for its turn", 0.0)
    assert parked == pytest.approx(between_steps(training) - stays)


def test_with_gpus_of_their_own_nothing_waits_for_a_turn() -> None:
    sizing = _sizing("2-gpus-24-gib-1.7b.yaml")
    assert sizing.shared_gpu is None
    assert "state that waits for its turn" not in host_parts(sizing.training)


def test_the_figures_say_in_a_line_each_what_stays_and_why() -> None:
    lines = dict(_sizing(SMALL).figures())
    assert "kept_on_gpu: parameters would fit, too" in lines["the rank's parameters"]
    assert "kept_on_gpu: all a sampling turn needs 28.1 of 24" in lines["the rank's moments"]
    assert "kept_on_gpu: weights would fit, too" in lines["the engine's weights"]
    fits = lines["kept_on_gpu that would fit"]
    assert fits == "trainer none or parameters; rollout_server none or weights"
    lines = dict(_sizing("2-gpus-24-gib-1.7b-shared.yaml").figures())
    assert "in host memory all the time (offload: optimizer)" in lines["the rank's moments"]
    lines = dict(_sizing("1-gpu-80-gib-8b-lora.yaml", 80.0).figures())
    assert "15.3 GiB stay (rollout_server.kept_on_gpu: weights)" in lines["the engine's weights"]


@pytest.mark.parametrize("figures", [(), ("--figures",)])
def test_a_train_turn_that_does_not_fit_is_refused_with_both_figures_and_what_would(
    check: Check, figures: tuple[str, ...]
) -> None:
    status, _, refused = check(SMALL, *figures, trainer={"activation_checkpointing": False})
    assert status == 2
    assert "GiB of its GPU's 24.0, beside 2.0 for the sleeping engine." in refused
    ways = refused.partition("cheapest first: ")[2].strip().rstrip(".").split("; ")
    assert ways[0] == "activation_checkpointing: true"
    assert check(SMALL, *figures, trainer={"activation_checkpointing": True})[0] == 0


def test_weights_that_leave_are_cheaper_than_any_setting_of_the_ranks(check: Check) -> None:
    trainer, rollout = {"micro_batch_tokens": 57344}, {"kept_on_gpu": "weights"}
    assert check(SMALL, trainer=trainer)[0] == 0
    status, _, refused = check(SMALL, trainer=trainer, rollout=rollout)
    assert status == 2
    assert "beside 2.0 for the sleeping engine and 1.1 for its weights" in refused
    assert "cheapest first: rollout_server.kept_on_gpu: none; " in refused


def test_more_ranks_mean_more_gpus_for_engines(check: Check) -> None:
    """The ranks of a shared placement are as many as the engines' GPUs."""
    name = "2-gpus-24-gib-1.7b-shared.yaml"
    refused = check(name, "--gpu-gib", "12")[2]
    ways = refused.partition("cheapest first: ")[2].strip().rstrip(".").split("; ")
    (more,) = [way for way in ways if way.startswith("world_size")]
    assert more.endswith(" and as many GPUs for engines")


def test_a_sampling_turn_that_does_not_fit_is_refused_with_what_would(check: Check) -> None:
    status, _, refused = check(SMALL, trainer={"kept_on_gpu": "all"})
    assert status == 2
    assert "rollout_server.gpu_memory_utilization: 0.84 -> A sampling turn needs 20.2" in refused
    assert "28.1 of 24 GiB" in refused
    ways = refused.partition("cheapest first: ")[2].strip().rstrip(".").split("; ")
    assert ways[:2] == ["trainer.kept_on_gpu: parameters", "trainer.kept_on_gpu: none"]
    assert ways[2].startswith("gpu_memory_utilization: 0.")
    share = float(ways[2].partition(": ")[2])
    assert check(SMALL, trainer={"kept_on_gpu": "parameters"})[0] == 0
    smaller = {"gpu_memory_utilization": share}
    assert check(SMALL, trainer={"kept_on_gpu": "all"}, rollout=smaller)[0] == 0
    larger = {"gpu_memory_utilization": share + 0.01}
    assert check(SMALL, trainer={"kept_on_gpu": "all"}, rollout=larger)[0] == 2


def test_a_kv_cache_that_holds_no_whole_answer_is_refused_with_what_would(check: Check) -> None:
    status, _, refused = check(SMALL, rollout={"gpu_memory_utilization": 0.22})
    assert status == 2
    assert "the KV cache holds about" in refused
    assert "gpu_memory_utilization: 0.94; " in refused
    assert check(SMALL, rollout={"gpu_memory_utilization": 0.94})[0] == 0


def test_a_node_must_have_the_host_memory_of_all_that_is_parked(
    check: Check, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes.yaml"
    for gib, expected in ((64, 0), (20, 2)):
        resources = {"CPU": 16, "GPU": 1, "memory": gib * 2**30}
        node = {"resources": resources, "node_config": {}}
        nodes.write_text(
            yaml.safe_dump(
                {
                    "cluster_name": "c",
                    "max_workers": 0,
                    "provider": {"type": "local"},
                    "head_node_type": "n",
                    "available_node_types": {"n": node},
                }
            )
        )
        status, _, refused = check(SMALL, "--nodes", str(nodes))
        assert status == expected, refused
    assert "of state that waits for its turn" in refused
    assert "for engines and relay" in refused
