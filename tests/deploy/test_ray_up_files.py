"""The `ray up` files pass Ray's own checks, without a cloud, and hold what they are for."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.node_types import nodes_of_file
from services.protocol.errors import InvalidInput

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ["aws.yaml", "gcp.yaml", "onprem.yaml"]
CLOUDS = FILES[:2]


def _load(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "ray" / name).read_text())


def _check(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(cluster)))


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_valid(name: str) -> None:
    _check(_load(name))


@pytest.mark.parametrize("name", CLOUDS)
def test_a_misspelt_key_in_a_node_type_is_refused(name: str) -> None:
    cluster = _load(name)
    cluster["available_node_types"]["rollout"]["min_worker"] = 1
    with pytest.raises(Exception, match="min_worker"):
        _check(cluster)


@pytest.mark.parametrize("name", CLOUDS)
def test_the_nodes_hold_the_size_that_they_are_for(name: str) -> None:
    deployment = Deployment.read(DEPLOY / "cluster-4-nodes.yaml")
    assert deployment.check_nodes(nodes_of_file(DEPLOY / "ray" / name)) == []


def test_a_size_too_large_for_the_nodes_is_refused() -> None:
    deployment = Deployment.read(DEPLOY / "cluster-32-nodes.yaml")
    with pytest.raises(InvalidInput, match="Only 1 of them fit"):
        deployment.check_nodes(nodes_of_file(DEPLOY / "ray" / "aws.yaml"))


def test_nodes_that_ray_finds_out_about_itself_are_not_guessed() -> None:
    with pytest.raises(InvalidInput, match="--cluster"):
        nodes_of_file(DEPLOY / "ray" / "onprem.yaml")


def test_workers_are_counted_as_ray_would_and_bad_nodes_are_named(tmp_path: Path) -> None:
    cluster = _load("aws.yaml")
    for node in cluster["available_node_types"].values():
        node.pop("max_workers", None)
    cluster |= {"max_workers": 3}
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(cluster))
    ours = {node.name: node.count for node in nodes_of_file(path).types}
    theirs = prepare_config(copy.deepcopy(cluster))["available_node_types"]
    head = cluster["head_node_type"]
    assert ours == {name: one["max_workers"] + (name == head) for name, one in theirs.items()}
    assert ours[head] == 1
    assert nodes_of_file(path).count == 1 + 3, "the head, and workers of all types together"
    cluster["available_node_types"][head] = ["CPU"]
    path.write_text(yaml.safe_dump(cluster))
    with pytest.raises(InvalidInput, match="as `ray up` reads them"):
        nodes_of_file(path)


@pytest.mark.parametrize("name", FILES)
def test_the_nodes_can_hold_the_tier_of_sandbox_that_is_required(name: str) -> None:
    configs = Deployment.read(DEPLOY / "cluster-4-nodes.yaml").configs
    assert configs["reward_service"].require_tier == "A"  # type: ignore[attr-defined]
    setting = "kernel.apparmor_restrict_unprivileged_userns=0"
    assert any(setting in command for command in _load(name)["setup_commands"])


@pytest.mark.parametrize("name", FILES)
def test_every_node_asks_for_the_token_that_is_sent_to_it_and_exports_metrics(name: str) -> None:
    cluster = _load(name)
    assert "~/.ray/auth_token" in cluster["file_mounts"]
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    starts = [command for command in commands if "ray start" in command]
    assert len(starts) == 2
    for command in starts:
        assert command.startswith("RAY_AUTH_MODE=token ")
        assert "--metrics-export-port=8080" in command
