"""The RayService manifest: its pods by Kubernetes' schema, its Serve file by our own check."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.node_types import nodes_of_ray_service
from millrace_tools.deploy.ray_service import RayServiceFile
from millrace_tools.main import main
from services.protocol.errors import InvalidInput

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "kuberay" / "rayservice.yaml"
KUBERNETES = "1.31"


@pytest.fixture
def manifest() -> dict[str, Any]:
    return copy.deepcopy(yaml.safe_load(FILE.read_text()))


def _groups(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def _containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = group["template"]["spec"]["containers"]
    return found


def _applications(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    return found


def _check_pods(manifest: dict[str, Any]) -> None:
    for group in _groups(manifest):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_the_pods_are_pods(manifest: dict[str, Any]) -> None:
    _check_pods(manifest)
    _groups(manifest)[3]["template"]["spec"]["containers"][0]["securityContext"]["capabilites"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="capabilites"):
        _check_pods(manifest)


def test_the_services_are_good_and_the_pods_have_room_for_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", str(FILE)]) == 0
    assert "32 GPU; the nodes have" in capsys.readouterr().out


def test_check_compares_host_memory_with_the_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rayservice.yaml"
    file.write_text(FILE.read_text().replace("memory: 1500Gi", "memory: 200Gi"))
    assert main(["check", str(file)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "of copy for a checkpoint each, and a node has 200.0." in told


def test_services_too_large_for_the_pods_are_refused(manifest: dict[str, Any]) -> None:
    _groups(manifest)[2]["maxReplicas"] = _groups(manifest)[2]["replicas"] = 2
    file = RayServiceFile.check(manifest, source="k.yaml")
    deployment = Deployment.check(file.serve, source="k.yaml")
    with pytest.raises(InvalidInput, match="Only 8 of them fit"):
        deployment.check_nodes(nodes_of_ray_service(file))


def test_the_serve_file_in_it_is_that_of_four_nodes_with_keys(manifest: dict[str, Any]) -> None:
    inside = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    plain = yaml.safe_load((DEPLOY / "cluster-4-nodes.yaml").read_text())
    assert inside["http_options"]["host"] == "0.0.0.0"
    inside["http_options"]["host"] = plain["http_options"]["host"]
    (router,) = [one for one in inside["applications"] if one["name"] == "router"]
    assert router["args"]["listen"].pop("host") == "0.0.0.0"
    for application in inside["applications"]:
        if application["name"] in ("router", "orchestrator", "page"):
            assert application["args"].pop("access") == {"api_keys_env": "MILLRACE_API_KEYS"}
            application["args"].pop("router_key_env", None)
    assert inside == plain


def test_the_service_leads_to_the_routers_port_of_the_pod_that_they_run_in(
    manifest: dict[str, Any],
) -> None:
    service = yaml.safe_load((DEPLOY / "kuberay" / "service.yaml").read_text())
    kubernetes_validate.validate(service, KUBERNETES, strict=True)
    head = _groups(manifest)[0]
    assert "head" in head["rayStartParams"]["resources"]
    assert service["spec"]["selector"].items() <= head["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    named = {one["name"]: one["containerPort"] for one in _containers(head)[0]["ports"]}
    router = next(one for one in _applications(manifest) if one["name"] == "router")
    assert named[port["targetPort"]] == router["args"]["listen"]["port"]


def test_kuberay_finds_serves_proxy_in_every_pod(manifest: dict[str, Any]) -> None:
    wanted = yaml.safe_load(manifest["spec"]["serveConfigV2"])["http_options"]["port"]
    for group in _groups(manifest):
        named = {one["name"]: one["containerPort"] for one in _containers(group)[0]["ports"]}
        assert named["serve"] == wanted


def test_every_pod_gets_the_keys_and_only_sandboxes_lose_their_profile(
    manifest: dict[str, Any],
) -> None:
    for group in _groups(manifest):
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        assert {entry["name"] for entry in container["env"]} >= {
            "MILLRACE_API_KEYS",
            "MILLRACE_ROUTER_KEY",
        }
        assert spec["securityContext"]["runAsUser"] == 1000
        assert ("securityContext" in container) == (group.get("groupName") == "reward")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda m: m["spec"].update(serveConfig=""), "spec.serveConfig"),
        (
            lambda m: m["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].update(replica=1),
            "spec.rayClusterConfig.workerGroupSpecs.0.replica",
        ),
        (lambda m: m.update(kind="RayJob"), "kind"),
        (lambda m: m["spec"].update(serveConfigV2="a: ["), "spec.serveConfigV2"),
    ],
)
def test_a_mistake_in_rays_part_of_it_is_named(
    manifest: dict[str, Any], change: Any, field: str
) -> None:
    change(manifest)
    with pytest.raises(InvalidInput) as problem:
        RayServiceFile.check(manifest, source="k.yaml")
    assert problem.value.field == f"k.yaml: {field}"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda group: group["rayStartParams"].update(resources="{rollout: 1"), "resources"),
        (
            lambda group: group["template"]["spec"]["containers"][0].pop("resources"),
            "template",
        ),
    ],
)
def test_pods_that_do_not_say_what_they_have_are_named(
    manifest: dict[str, Any], change: Any, field: str
) -> None:
    change(_groups(manifest)[2])
    with pytest.raises(InvalidInput) as problem:
        nodes_of_ray_service(RayServiceFile.check(manifest, source="k.yaml"))
    assert problem.value.field.startswith("k.yaml: rollout")
    assert field in problem.value.field
