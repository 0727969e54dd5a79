"""What a deployment of the rollout server asks Ray for."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.build_app import build_app

from services.rollout_server.app import WANTED, build, wanted_replicas
from services.rollout_server.config import RolloutServerConfig


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def deployed(model: Path, **changes: Any) -> Any:
    config = RolloutServerConfig(model=str(model), **changes)
    (deployment,) = build_app(build(config), name="rollout_server").deployments
    return deployment


def asked_for(model: Path, **changes: Any) -> Any:
    return deployed(model, **changes)._replica_config


def test_an_engine_of_several_gpus_gets_all_of_them_in_one_bundle_on_one_node(model: Path) -> None:
    asked = asked_for(model, device="cuda", tensor_parallel_size=4, num_cpus=2)
    assert asked.placement_group_bundles == [{"CPU": 2.0, "GPU": 4.0}]
    assert asked.placement_group_strategy == "STRICT_PACK"
    # The replica itself owns them: its children see what it sees.
    assert asked.ray_actor_options["num_gpus"] == 4
    assert asked.ray_actor_options["num_cpus"] == 2


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({"device": "cuda"}, 1),
        ({"device": "cpu"}, 0),
        ({"device": "cpu", "tensor_parallel_size": 2}, 0),
    ],
)
def test_an_engine_of_at_most_one_gpu_needs_no_placement_group(
    model: Path, changes: dict[str, Any], gpus: int
) -> None:
    asked = asked_for(model, **changes)
    assert asked.placement_group_bundles is None
    assert asked.ray_actor_options["num_gpus"] == gpus


def test_replicas_stay_on_nodes_that_have_the_resource_they_are_kept_on(model: Path) -> None:
    one = asked_for(model, device="cuda", node_resource="rollout")
    assert one.ray_actor_options["resources"] == {"rollout": 0.001}
    several = asked_for(model, device="cuda", tensor_parallel_size=2, node_resource="rollout")
    assert several.placement_group_bundles == [{"CPU": 0.1, "GPU": 2.0, "rollout": 0.001}]


def test_replicas_are_scaled_between_the_two_bounds_if_there_are_two(model: Path) -> None:
    scaled = deployed(model, replicas=1, max_replicas=3)._deployment_config.autoscaling_config
    assert (scaled.min_replicas, scaled.max_replicas) == (1, 3)
    fixed = deployed(model, replicas=2)._deployment_config
    assert (fixed.autoscaling_config, fixed.num_replicas) == (None, 2)


def test_fewer_replicas_at_most_than_at_least_are_refused(model: Path) -> None:
    with pytest.raises(ValueError, match="max_replicas: 1 is less than replicas: 2"):
        RolloutServerConfig(model=str(model), replicas=2, max_replicas=1)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"a": 2.0, "b": 3.0}, 3),
        ({"a": 2.4}, 3),
        ({"a": 2.0, "new": 0.0}, 2),
        ({"a": 0.0}, 1),
        ({}, 1),
    ],
)
def test_the_largest_wish_that_was_heard_is_followed(told: dict[str, float], wanted: int) -> None:
    context = SimpleNamespace(
        aggregated_metrics={WANTED: told}, capacity_adjusted_min_replicas=1, policy_state={}
    )
    assert wanted_replicas(context) == (wanted, {})
