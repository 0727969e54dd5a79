"""The `ray up` file passes Ray's own checks, without a cloud."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

FILE = Path(__file__).parents[2] / "deploy" / "ray" / "cluster.yaml"


@pytest.fixture
def cluster() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def _check(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(cluster)))


def test_the_ray_up_file_is_valid(cluster: dict[str, Any]) -> None:
    _check(cluster)


def test_a_misspelt_key_in_a_node_type_is_refused(cluster: dict[str, Any]) -> None:
    cluster["available_node_types"]["rollout"]["min_worker"] = 1
    with pytest.raises(Exception, match="min_worker"):
        _check(cluster)


def test_the_nodes_can_hold_the_tier_of_sandbox_that_is_required(cluster: dict[str, Any]) -> None:
    deploy = yaml.safe_load((FILE.parents[1] / "cluster.yaml").read_text())
    arguments = {app["name"]: app["args"] for app in deploy["applications"]}
    assert arguments["reward_service"]["require_tier"] == "A"
    assert any("install -y -q bubblewrap" in command for command in cluster["setup_commands"])


def test_every_start_command_says_the_authentication_mode(cluster: dict[str, Any]) -> None:
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    for command in commands:
        assert "ray start" not in command or command.startswith("RAY_AUTH_MODE=")


def test_the_nodes_have_the_gpus_that_the_services_ask_for(cluster: dict[str, Any]) -> None:
    deploy = yaml.safe_load((FILE.parents[1] / "cluster.yaml").read_text())
    arguments = {app["name"]: app["args"] for app in deploy["applications"]}
    wanted = arguments["trainer"]["world_size"] + arguments["rollout_server"]["replicas"]
    nodes = cluster["available_node_types"].values()
    offered = sum(node["resources"]["GPU"] * node["max_workers"] for node in nodes)
    assert wanted <= offered
