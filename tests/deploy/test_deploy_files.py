"""The shipped deployment files are good, and what is wrong with others is said in a line."""

import copy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from services.cli.deployment import Deployment
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.trainer.config import TrainerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
APPLICATIONS = {
    "weight_bus": None,
    "reward_service": None,
    "trainer": None,
    "rollout_server": None,
    "router": "/",
    "orchestrator": "/v1/runs",
}


@pytest.fixture
def laptop(tmp_path: Path) -> dict[str, Any]:
    """deploy/laptop.yaml with a model folder that exists."""
    (tmp_path / "config.json").write_text('{"head_dim": 32, "num_hidden_layers": 2}')
    (tmp_path / "tokenizer.json").write_text("{}")
    data = yaml.safe_load((DEPLOY / "laptop.yaml").read_text())
    for name in ("trainer", "rollout_server"):
        _app(data, name)["args"]["model"] = str(tmp_path)
    return data


def _app(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(app for app in data["applications"] if app["name"] == name)


def _problem(data: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Deployment.check(data, source="deploy.yaml")
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_laptop_file_builds_all_six_services(laptop: dict[str, Any]) -> None:
    deployment = Deployment.check(laptop, source="laptop.yaml")
    routes = {app.name: app.route_prefix for app in deployment.schema.applications}
    assert routes == APPLICATIONS
    assert deployment.replicas_of("rollout_server") == 2


def test_the_cluster_file_builds_the_same_services_on_gpus() -> None:
    deployment = Deployment.read(DEPLOY / "cluster.yaml")
    assert {app.name: app.route_prefix for app in deployment.schema.applications} == APPLICATIONS
    engine = next(b for b in deployment.built if b.name == "rollout_server").deployments[0]
    assert engine.ray_actor_options["num_gpus"] >= 1


def test_each_deployment_has_the_name_of_its_service(laptop: dict[str, Any]) -> None:
    deployment = Deployment.check(laptop, source="laptop.yaml")
    for built in deployment.built:
        assert [made.name for made in built.deployments] == [built.name]


def test_the_laptop_file_fits_two_cpus(laptop: dict[str, Any]) -> None:
    deployment = Deployment.check(laptop, source="laptop.yaml")
    wanted = sum(
        made.ray_actor_options.get("num_cpus", 1) * int(made.num_replicas)
        for built in deployment.built
        for made in built.deployments
    )
    ranks = _app(laptop, "trainer")["args"]["world_size"]
    assert wanted + ranks * 0.1 <= 2


def test_requests_have_no_deadline_in_the_proxy(laptop: dict[str, Any]) -> None:
    for data in (laptop, yaml.safe_load((DEPLOY / "cluster.yaml").read_text())):
        assert data["http_options"]["request_timeout_s"] is None


@pytest.mark.parametrize("name", ["laptop.yaml", "cluster.yaml"])
def test_the_orchestrator_reaches_the_router_wherever_it_runs(name: str) -> None:
    data = yaml.safe_load((DEPLOY / name).read_text())
    config = OrchestratorConfig.model_validate(_app(data, "orchestrator")["args"])
    assert urlsplit(config.router_url).hostname == "127.0.0.1"
    assert urlsplit(config.router_url).port == data["http_options"]["port"]
    if name == "cluster.yaml":
        assert data["proxy_location"] == "EveryNode"


@pytest.mark.parametrize("name", ["laptop.yaml", "cluster.yaml"])
def test_nobody_else_reaches_services_that_ask_for_no_password(name: str) -> None:
    data = yaml.safe_load((DEPLOY / name).read_text())
    assert data["http_options"]["host"] == "127.0.0.1"


@pytest.mark.parametrize("name", ["laptop.yaml", "cluster.yaml"])
def test_who_waits_for_a_service_waits_longer_than_it_may_take(name: str) -> None:
    data = yaml.safe_load((DEPLOY / name).read_text())
    orchestrator = OrchestratorConfig.model_validate(_app(data, "orchestrator")["args"])
    trainer = TrainerConfig.model_validate(_app(data, "trainer")["args"])
    reward = RewardServiceConfig.model_validate(_app(data, "reward_service")["args"])
    longest_call_s = trainer.call_timeout_s + trainer.bus_timeout_s
    assert orchestrator.trainer_call_timeout_s > longest_call_s
    assert orchestrator.trainer_timeout_s > trainer.start_timeout_s
    assert orchestrator.score_timeout_s > reward.answer_deadline_s > reward.queue_wait_s


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (lambda d: d.update(aplications=[]), "deploy.yaml: aplications", []),
        (
            lambda d: d["http_options"].update(prot=1),
            "deploy.yaml: http_options.prot",
            1,
        ),
        (
            lambda d: _app(d, "router").update(routeprefix="/"),
            "deploy.yaml: applications[router].routeprefix",
            "/",
        ),
        (
            lambda d: _app(d, "router").update(deployments=[{"name": "router", "replicas": 2}]),
            "deploy.yaml: applications[router].deployments[router].replicas",
            2,
        ),
        (
            lambda d: _app(d, "router")["args"].update(conect_s=5),
            "deploy.yaml: router.args.conect_s",
            5,
        ),
        (
            lambda d: _app(d, "trainer")["args"].update(world_size="two"),
            "deploy.yaml: trainer.args.world_size",
            "two",
        ),
        (
            lambda d: _app(d, "trainer")["args"].pop("model"),
            "deploy.yaml: trainer.args.model",
            "(missing)",
        ),
        (
            lambda d: _app(d, "rollout_server")["args"].update(model="/no/such/model"),
            "deploy.yaml: rollout_server.args.model",
            "/no/such/model",
        ),
        (
            lambda d: _app(d, "router").update(import_path="services.router.ap:build"),
            "deploy.yaml: router.import_path",
            "services.router.ap:build",
        ),
        (
            lambda d: _app(d, "router").update(import_path="services.router.app:bild"),
            "deploy.yaml: router.import_path",
            "services.router.app:bild",
        ),
        (
            lambda d: _app(d, "router").update(deployments=[{"name": "Router"}]),
            "deploy.yaml: router.deployments",
            "Router",
        ),
    ],
)
def test_a_mistake_is_named_with_its_value(
    laptop: dict[str, Any], change: Any, field: str, value: object
) -> None:
    data = copy.deepcopy(laptop)
    change(data)
    problem = _problem(data)
    assert problem.field == field
    assert problem.value == value
    assert problem.fix


def test_two_applications_may_not_share_a_route(laptop: dict[str, Any]) -> None:
    _app(laptop, "orchestrator")["route_prefix"] = "/"
    assert "route_prefix" in _problem(laptop).fix


def test_a_file_that_is_no_mapping_is_refused() -> None:
    assert "mapping" in _problem(["router"]).fix


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("applications: [")
    with pytest.raises(InvalidInput, match="not valid YAML"):
        Deployment.read(file)
