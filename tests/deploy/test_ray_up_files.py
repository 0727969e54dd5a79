"""The `ray up` files pass Ray's own checks, without a cloud, and hold what they are for."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.node_types import nodes_of_file
from services.protocol.errors import InvalidInput
from tests.deploy.ray_up_tables import DEPLOY, FILES, FOR_GPUS, ONE, SEVERAL, load, table, with_row

MACHINE = {"aws-1-node.yaml": "InstanceType", "gcp-1-node.yaml": "machineType"}
ROWS = [(name, file) for name in (*SEVERAL, *ONE) for file in table(name)]


def _check(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(cluster)))


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_valid(name: str) -> None:
    _check(load(name))


@pytest.mark.parametrize("name", [*SEVERAL, *ONE])
def test_a_misspelt_key_in_a_node_type_is_refused(name: str) -> None:
    cluster = load(name)
    cluster["available_node_types"]["head"]["min_worker"] = 1
    with pytest.raises(Exception, match="min_worker"):
        _check(cluster)


def _written(name: str, row: dict[str, str], folder: Path) -> Path:
    """The file with the values of a row in it."""
    cluster = with_row(name, row)
    _check(cluster)
    path = folder / name
    path.write_text(yaml.safe_dump(cluster))
    return path


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_every_file_for_gpus_has_nodes(provider: str) -> None:
    rows = [file for name, file in ROWS if name.startswith(provider)]
    assert sorted(rows) == FOR_GPUS


@pytest.mark.parametrize(("name", "file"), ROWS)
def test_the_nodes_hold_what_the_file_asks_for(name: str, file: str, tmp_path: Path) -> None:
    deployment, row = Deployment.read(DEPLOY.parent / file), table(name)[file]
    assert deployment.check_nodes(nodes_of_file(_written(name, row, tmp_path))) == []
    # Nor is there a node too many, or a smaller machine that would do.
    if name in SEVERAL:
        fewer = [row | {kind: str(int(count) - 1)} for kind, count in row.items()]
    else:
        like = [one for one in table(name).values() if one["GiB"] == row["GiB"]]
        fewer = [one for one in like if int(one["GPU"]) < int(row["GPU"])]
    for less in fewer:
        with pytest.raises(InvalidInput):
            deployment.check_nodes(nodes_of_file(_written(name, less, tmp_path)))


@pytest.mark.parametrize("name", [*SEVERAL, *ONE])
def test_the_file_stands_as_its_first_row_says(name: str) -> None:
    row, types = next(iter(table(name).values())), load(name)["available_node_types"]
    if name in SEVERAL:
        assert {kind: str(types[kind]["min_workers"]) for kind in row} == row
        assert all(types[kind]["max_workers"] == int(count) for kind, count in row.items())
        assert load(name)["max_workers"] == sum(map(int, row.values()))
    else:
        found = {key: str(value) for key, value in types["head"]["resources"].items()}
        machine = types["head"]["node_config"][MACHINE[name]]
        assert found | {MACHINE[name]: machine, "GiB": row["GiB"]} == row


@pytest.mark.parametrize(("name", "file"), ROWS)
def test_the_file_for_gpus_names_its_nodes(name: str, file: str) -> None:
    (nodes,) = re.findall(r"^# Nodes: (.*)$", (DEPLOY.parent / file).read_text(), re.MULTILINE)
    assert {name, "onprem.yaml"} <= set(re.findall(r"[\w-]+\.yaml", nodes))


def test_a_size_too_large_for_the_nodes_is_refused() -> None:
    deployment = Deployment.read(DEPLOY / "cluster-32-nodes.yaml")
    with pytest.raises(InvalidInput, match="Only 1 of them fit"):
        deployment.check_nodes(nodes_of_file(DEPLOY / "ray" / "aws.yaml"))


def test_one_machine_of_your_own_is_a_cluster_of_no_workers() -> None:
    cluster = load("onprem.yaml")
    cluster["provider"]["worker_ips"] = []
    _check(cluster)
    assert prepare_config(cluster)["max_workers"] == 0


def test_machines_of_your_own_are_started_by_the_autoscaler_that_knows_the_head() -> None:
    """The newer one counts it as a worker, and starts one too few (tests/operations)."""
    (start,) = (c for c in load("onprem.yaml")["head_start_ray_commands"] if "ray start" in c)
    assert start.startswith("RAY_enable_autoscaler_v2=0 ")


def test_nodes_that_ray_finds_out_about_itself_are_not_guessed() -> None:
    with pytest.raises(InvalidInput, match="--cluster"):
        nodes_of_file(DEPLOY / "ray" / "onprem.yaml")


def test_workers_are_counted_as_ray_would_and_bad_nodes_are_named(tmp_path: Path) -> None:
    cluster = load("aws.yaml")
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
    configs = Deployment.read(DEPLOY / "cluster.yaml").configs
    assert configs["reward_service"].require_tier == "A"  # type: ignore[attr-defined]
    setting = "kernel.apparmor_restrict_unprivileged_userns=0"
    assert any(setting in command for command in load(name)["setup_commands"])


@pytest.mark.parametrize("name", FILES)
def test_nodes_and_shells_ask_for_the_token_that_is_sent_to_them_and_export_metrics(
    name: str,
) -> None:
    cluster = load(name)
    assert "~/.ray/auth_token" in cluster["file_mounts"]
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    starts = [command for command in commands if "ray start" in command]
    assert len(starts) == 2
    profile = cluster["setup_commands"][-1]
    assert "export RAY_AUTH_MODE=token' >> ~/.profile" in profile, "`ray attach` reads it"
    for command in starts:
        assert "RAY_AUTH_MODE=token " in command
        assert "--metrics-export-port=8080" in command
