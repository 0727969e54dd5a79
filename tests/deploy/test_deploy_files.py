"""The shipped deployment files are good, and what is wrong with others is said in a line."""

import copy
import socket
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec
from urllib.parse import urlsplit

import pytest
import yaml
from ray import serve
from ray.serve._private.client import ServeControllerClient

from millrace_tools.capacity.capacity import Nodes, NodeType
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.main import main
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel
from services.reward_service.workspaces.config import WorkspacesConfig
from services.router.config import RouterConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
CLUSTERS = ["cluster.yaml", "cluster-4-nodes.yaml", "cluster-32-nodes.yaml"]
FILES = ["laptop.yaml", *CLUSTERS]
APPLICATIONS = {
    "weight_bus": None,
    "reward_service": None,
    "trainer": None,
    "rollout_server": None,
    "router": "/",
    "orchestrator": "/v1/runs",
    "page": "/page",
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


def test_the_laptop_file_builds_all_services(laptop: dict[str, Any]) -> None:
    deployment = Deployment.check(laptop, source="laptop.yaml")
    routes = {app.name: app.route_prefix for app in deployment.schema.applications}
    assert routes == APPLICATIONS
    assert deployment.replicas_of("rollout_server") == 1


def test_what_was_built_is_handed_over_unless_the_file_lays_something_over_it(
    laptop: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = create_autospec(ServeControllerClient, instance=True)
    monkeypatch.setattr("millrace_tools.deploy.deployment.serve_start", lambda **_: client)
    plain = Deployment.check(laptop, source="laptop.yaml")
    plain.start(changing=False)
    (built,) = client.deploy_applications.call_args.args
    assert [app.name for app in built] == plain.names
    assert all(app.logging_config.enable_access_log is False for app in built)
    client.deploy_apps.assert_not_called()

    _app(laptop, "page")["deployments"] = [{"name": "page", "num_replicas": 2}]
    changed = Deployment.check(laptop, source="laptop.yaml")
    changed.start(changing=False)
    assert client.deploy_apps.call_args.args == (changed.schema,)
    assert client.deploy_applications.call_count == 1


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_cluster_files_build_the_same_services_on_gpus(name: str) -> None:
    deployment = Deployment.read(DEPLOY / name)
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


SANDBOXES = {
    "name": "sandboxes",
    "route_prefix": "/v1/sandboxes",
    "import_path": "services.reward_service.workspace_api.app:build",
    "args": {},
}


@pytest.mark.parametrize("name", ["laptop.yaml", "cluster.yaml"])
def test_sandboxes_are_an_application_that_a_file_may_have(name: str) -> None:
    text = (DEPLOY / name).read_text()
    commented = text[text.index("# - name: sandboxes") :]
    uncommented = "\n".join(line[2:] for line in commented.rstrip().split("\n"))
    (sandboxes,) = yaml.safe_load(uncommented)
    assert {**sandboxes, "args": {}} == SANDBOXES
    WorkspacesConfig.model_validate(sandboxes["args"])


def test_the_file_with_sandboxes_alone_builds_them() -> None:
    deployment = Deployment.read(DEPLOY / "sandboxes.yaml")
    assert deployment.names == ["reward_service", "sandboxes"]
    assert deployment.replicas_of("sandboxes") == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "workspaces"}, "applications[workspaces].name"),
        ({"route_prefix": "/sandboxes"}, "applications[sandboxes].route_prefix"),
        ({"args": {"max_opne": 3}}, "sandboxes.args.max_opne"),
        ({"args": {"replicas": 0}}, "sandboxes.args.replicas"),
    ],
)
def test_sandboxes_that_nobody_would_find_are_refused(
    laptop: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    laptop["applications"].append(SANDBOXES | change)
    assert _problem(laptop).field == f"deploy.yaml: {field}"


def test_sandboxes_off_loopback_need_keys(laptop: dict[str, Any]) -> None:
    laptop["applications"] = [SANDBOXES]
    laptop["http_options"]["host"] = "0.0.0.0"
    assert _problem(laptop).field.endswith("sandboxes.args.access.api_keys_file")


def test_requests_have_no_deadline_in_the_proxy(laptop: dict[str, Any]) -> None:
    for data in (laptop, *(yaml.safe_load((DEPLOY / name).read_text()) for name in CLUSTERS)):
        assert data["http_options"]["request_timeout_s"] is None


@pytest.mark.parametrize("name", FILES)
def test_the_orchestrator_reaches_the_router_wherever_it_runs(name: str) -> None:
    data = yaml.safe_load((DEPLOY / name).read_text())
    config = OrchestratorConfig.model_validate(_app(data, "orchestrator")["args"])
    assert urlsplit(config.router_url).hostname == "127.0.0.1"
    router = RouterConfig.model_validate(_app(data, "router")["args"])
    assert router.listen is not None
    assert urlsplit(config.router_url).port == router.listen.port == 8000
    assert router.node_resource == config.node_resource
    assert (router.node_resource == "head") == ("nodes" in name)


@pytest.mark.parametrize("name", FILES)
def test_clients_come_to_the_router_itself_and_not_through_serves_proxy(name: str) -> None:
    data = yaml.safe_load((DEPLOY / name).read_text())
    assert _app(data, "router")["args"]["listen"]["port"] == 8000
    assert data["http_options"]["port"] != 8000


def test_a_router_cannot_listen_at_the_port_of_serves_proxy(laptop: dict[str, Any]) -> None:
    laptop["http_options"]["port"] = 8000
    problem = _problem(laptop)
    assert problem.field == "deploy.yaml: router.args.listen.port"
    assert "8001" in problem.fix


@pytest.mark.parametrize("name", FILES)
def test_nobody_else_reaches_services_that_ask_for_no_password(name: str) -> None:
    data = yaml.safe_load((DEPLOY / name).read_text())
    assert data["http_options"]["host"] == "127.0.0.1"


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


@pytest.mark.parametrize(("name", "wrong"), [("trainer", "trainr"), ("reward_service", "grader")])
def test_a_service_under_a_name_that_nobody_looks_for_is_refused(
    laptop: dict[str, Any], name: str, wrong: str
) -> None:
    _app(laptop, name)["name"] = wrong
    problem = _problem(laptop)
    assert problem.field == f"deploy.yaml: applications[{wrong}].name"
    assert f"Call it `{name}`" in problem.fix


def test_an_application_of_somebody_else_may_have_any_name(laptop: dict[str, Any]) -> None:
    _app(laptop, "router")["import_path"] = "tests.deploy.test_deploy_files:build_other"
    _app(laptop, "router")["args"] = {}
    _app(laptop, "router")["name"] = "other"
    assert "other" in Deployment.check(laptop, source="deploy.yaml").names


class OtherConfig(StrictModel):
    """Takes nothing."""


def build_other(config: OtherConfig) -> serve.Application:
    @serve.deployment(name="other")
    class Other:
        pass

    return Other.bind()


@pytest.mark.parametrize(("name", "route"), [("router", "/v1"), ("orchestrator", "/runs")])
def test_a_route_that_no_client_knows_is_refused(
    laptop: dict[str, Any], name: str, route: str
) -> None:
    _app(laptop, name)["route_prefix"] = route
    assert _problem(laptop).field == f"deploy.yaml: applications[{name}].route_prefix"


@pytest.mark.parametrize(
    ("push", "lora_rank", "fix"),
    [
        ("adapter", None, "Write 4"),
        ("adapter", 2, "Write 4"),
        ("merged", 4, "Leave it out"),
        (None, 4, "Leave it out"),
    ],
)
def test_trainer_and_rollout_server_agree_on_whether_adapters_travel(
    laptop: dict[str, Any], push: str | None, lora_rank: int | None, fix: str
) -> None:
    folder = Path(_app(laptop, "rollout_server")["args"]["model"])
    (folder / "model.safetensors").write_bytes(b"weights")
    if push is not None:
        _app(laptop, "trainer")["args"]["lora"] = {"rank": 4, "alpha": 8, "push": push}
    if lora_rank is not None:
        _app(laptop, "rollout_server")["args"]["lora_rank"] = lora_rank
    problem = _problem(laptop)
    assert problem.field == "deploy.yaml: rollout_server.args.lora_rank"
    assert problem.value == lora_rank
    assert fix in problem.fix


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8002", "http://localhost:8002", f"http://{socket.gethostname()}:8002"],
)
def test_the_router_url_on_this_machine_has_the_port_of_router_or_serve(
    laptop: dict[str, Any], url: str
) -> None:
    _app(laptop, "orchestrator")["args"]["router_url"] = url
    problem = _problem(laptop)
    assert (problem.field, problem.value) == ("deploy.yaml: orchestrator.args.router_url", url)
    assert "port 8000 and port 8001" in problem.fix
    laptop["http_options"]["port"] = 8002
    Deployment.check(laptop, source="deploy.yaml")
    laptop["http_options"]["port"] = 8001
    _app(laptop, "router")["args"]["listen"]["port"] = 8002
    Deployment.check(laptop, source="deploy.yaml")


def test_a_default_router_url_is_checked_too(laptop: dict[str, Any]) -> None:
    _app(laptop, "orchestrator")["args"].clear()
    _app(laptop, "router")["args"]["listen"]["port"] = 8010
    assert _problem(laptop).value == "http://127.0.0.1:8000"


def test_a_router_elsewhere_may_have_any_port(laptop: dict[str, Any]) -> None:
    _app(laptop, "orchestrator")["args"]["router_url"] = "http://router.example:9000"
    Deployment.check(laptop, source="deploy.yaml")


def test_replicas_that_the_files_deployments_name_are_the_ones_that_count(
    laptop: dict[str, Any],
) -> None:
    _app(laptop, "rollout_server")["deployments"] = [{"name": "rollout_server", "num_replicas": 3}]
    deployment = Deployment.check(laptop, source="deploy.yaml")
    assert deployment.replicas_of("rollout_server") == 3
    assert deployment.configs["rollout_server"].replicas == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "scaled", [{"num_replicas": 2}, {"autoscaling_config": {"min_replicas": 1, "max_replicas": 3}}]
)
def test_replicas_that_were_built_alone_are_not_scaled_by_the_files_deployments(
    laptop: dict[str, Any], scaled: dict[str, Any]
) -> None:
    router, reward = _app(laptop, "router"), _app(laptop, "reward_service")
    router["deployments"] = [{"name": "router", **scaled}]
    problem = _problem(laptop)
    assert problem.field.startswith("deploy.yaml: router.")
    assert "Write router.args.replicas" in problem.fix
    router["args"]["replicas"] = 2
    Deployment.check(laptop, source="deploy.yaml")
    reward["deployments"] = [{"name": "reward_service", **scaled}]
    Deployment.check(laptop, source="deploy.yaml")  # nobody gives it test sets
    reward["args"]["access"] = {"allow_unauthenticated": True}
    assert "Write reward_service.args.test_set_dir" in _problem(laptop).fix
    reward["args"]["test_set_dir"] = "/shared/test-sets"
    Deployment.check(laptop, source="deploy.yaml")


@pytest.mark.parametrize("name", ["orchestrator", "trainer", "weight_bus"])
def test_a_service_of_which_there_is_one_is_not_scaled(laptop: dict[str, Any], name: str) -> None:
    _app(laptop, name)["deployments"] = [{"name": name, "num_replicas": 2}]
    assert "a deployment has one of these" in _problem(laptop).fix


def test_placements_that_the_files_deployments_name_are_the_ones_that_count(
    laptop: dict[str, Any],
) -> None:
    nodes = Nodes(types=(NodeType(name="node", count=1, resources={"CPU": 2}),))
    check = Deployment.check(laptop, source="deploy.yaml")
    assert check.check_nodes(nodes) == []
    _app(laptop, "router")["deployments"] = [
        {"name": "router", "ray_actor_options": {"num_gpus": 1}}
    ]
    with pytest.raises(InvalidInput) as problem:
        Deployment.check(laptop, source="deploy.yaml").check_nodes(nodes)
    assert problem.value.field == "deploy.yaml: router.args.replicas"
    assert problem.value.value == "1 CPU, 1 GPU"


def test_room_for_a_second_router_is_asked_for_as_serve_will(laptop: dict[str, Any]) -> None:
    _app(laptop, "router")["args"]["num_cpus"] = 1
    two, three = (
        Nodes(types=(NodeType(name="node", count=1, resources={"CPU": cpus}),)) for cpus in (2, 3)
    )
    deployment = Deployment.check(laptop, source="deploy.yaml")
    (note,) = deployment.check_nodes(two)
    assert note.startswith("router.args.replicas: a change would wait for ever")
    assert deployment.check_nodes(three) == []
    # Behind Serve's proxies the old one stops first, unless the file says otherwise.
    _app(laptop, "router")["args"].pop("listen")
    _app(laptop, "orchestrator")["args"]["router_url"] = "http://router.example:8000"
    assert Deployment.check(laptop, source="deploy.yaml").check_nodes(two) == []
    _app(laptop, "router")["deployments"] = [{"name": "router", "max_surge_percent": 100}]
    assert len(Deployment.check(laptop, source="deploy.yaml").check_nodes(two)) == 1


def test_ranks_that_share_a_node_are_one_bundle_there(laptop: dict[str, Any]) -> None:
    _app(laptop, "orchestrator")["args"]["router_url"] = "http://router.example:8000"
    changes = {"world_size": 4, "ranks_per_node": 2, "rank_num_cpus": 2, "node_resource": "trainer"}
    _app(laptop, "trainer")["args"] |= changes
    deployment = Deployment.check(laptop, source="deploy.yaml")
    rest = NodeType(name="rest", count=1, resources={"CPU": 2})
    trainer = {"CPU": 4, "trainer": 1}
    large = NodeType(name="t", count=2, resources=trainer)
    assert deployment.check_nodes(Nodes(types=(rest, large))) == []
    small = NodeType(name="t", count=4, resources=trainer | {"CPU": 3})
    with pytest.raises(InvalidInput) as problem:
        deployment.check_nodes(Nodes(types=(rest, small)))
    assert problem.value.field == "deploy.yaml: trainer.args.ranks_per_node"
    assert problem.value.value == "4 CPU, 0.002 trainer"
    _app(laptop, "trainer")["args"] |= {"ranks_per_node": 3}
    assert "give a divisor of world_size" in _problem(laptop).fix


def test_on_several_nodes_the_orchestrator_must_be_where_the_router_is(
    laptop: dict[str, Any],
) -> None:
    head = NodeType(name="head", count=1, resources={"CPU": 2, "head": 1})
    nodes = Nodes(types=(head, NodeType(name="node", count=2, resources={"CPU": 2})))
    with pytest.raises(InvalidInput) as problem:
        Deployment.check(laptop, source="deploy.yaml").check_nodes(nodes)
    assert problem.value.field == "deploy.yaml: orchestrator.args.node_resource"
    for name in ("router", "orchestrator"):
        _app(laptop, name)["args"]["node_resource"] = "head"
    Deployment.check(laptop, source="deploy.yaml").check_nodes(nodes)


def test_on_several_nodes_an_orchestrator_behind_serve_needs_a_proxy_on_each(
    laptop: dict[str, Any],
) -> None:
    nodes = Nodes(types=(NodeType(name="node", count=2, resources={"CPU": 2}),))
    _app(laptop, "orchestrator")["args"]["router_url"] = "http://127.0.0.1:8001"
    with pytest.raises(InvalidInput) as problem:
        Deployment.check(laptop, source="deploy.yaml").check_nodes(nodes)
    assert problem.value.field == "deploy.yaml: proxy_location"
    laptop["proxy_location"] = "EveryNode"
    Deployment.check(laptop, source="deploy.yaml").check_nodes(nodes)


def test_check_compares_with_the_nodes_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four = DEPLOY / "cluster-4-nodes.yaml"
    data = yaml.safe_load(four.read_text())
    nodes = str(DEPLOY / "ray" / "aws.yaml")
    assert main(["check", str(four), "--nodes", nodes]) == 0
    assert "32 GPU; the nodes have" in capsys.readouterr().out
    _app(data, "rollout_server")["args"]["tensor_parallel_size"] = 16
    file = tmp_path / "deploy.yaml"
    file.write_text(yaml.safe_dump(data))
    assert main(["check", str(file), "--nodes", nodes]) == 2
    assert (
        "rollout_server.args.replicas: '4 CPU, 16 GPU, 0.001 rollout' -> No"
        in capsys.readouterr().err
    )


def test_services_that_are_left_out_are_listed(
    laptop: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(yaml.safe_dump(laptop))
    assert main(["check", str(file)]) == 0
    assert "not in this file" not in capsys.readouterr().out
    laptop["applications"] = [_app(laptop, "router"), _app(laptop, "orchestrator")]
    file.write_text(yaml.safe_dump(laptop))
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == (
        f"{file} is good: router, orchestrator\n"
        "not in this file: weight_bus, reward_service, trainer, rollout_server, page\n"
    )


@pytest.mark.parametrize(("together", "noted"), [(2, True), (4, False)])
def test_rows_that_are_shared_by_ranks_of_several_nodes_are_noted(
    laptop: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    together: int,
    noted: bool,
) -> None:
    shared = {"world_size": 8, "context_parallel": 4, "ranks_per_node": together}
    _app(laptop, "trainer")["args"] |= shared
    laptop["applications"] = [_app(laptop, "trainer")]
    file = tmp_path / "deploy.yaml"
    file.write_text(yaml.safe_dump(laptop))
    assert main(["check", str(file)]) == 0
    note = "note: trainer.args.context_parallel does not divide ranks_per_node"
    assert (note in capsys.readouterr().out) == noted


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("deploy/ray/aws.yaml", "This is a `ray up` file, not a Serve file"),
        ("examples/tiny_code/run.yaml", "This is a run file, not a Serve file"),
    ],
)
def test_another_kind_of_file_is_recognised(
    file: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(DEPLOY.parent / file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_long_value_is_cut(
    laptop: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    laptop["aplications"] = laptop.pop("applications")
    file = tmp_path / "deploy.yaml"
    file.write_text(yaml.safe_dump(laptop))
    assert main(["check", str(file)]) == 2
    error = capsys.readouterr().err
    assert "aplications: [{" in error
    assert "... -> No such key" in error
    assert len(error) < 400


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
