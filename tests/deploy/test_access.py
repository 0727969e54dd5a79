"""A deployment that others reach is refused without keys, before it gets to a cluster."""

from pathlib import Path

import pytest
import yaml

from millrace_tools.deploy.deployment import Deployment
from services.protocol.errors import InvalidInput

CLUSTER = Path(__file__).parents[2] / "deploy" / "cluster.yaml"
HTTP = ("router", "orchestrator", "page")


def _listening(host, **access):
    """deploy/cluster.yaml, listening on `host`, with these settings of access."""
    data = yaml.safe_load(CLUSTER.read_text())
    data["http_options"]["host"] = host
    for app in data["applications"]:
        if app["name"] in HTTP:
            app["args"]["access"] = access
        if app["name"] in ("orchestrator", "page") and "api_keys_file" in access:
            app["args"]["router_key_env"] = "MILLRACE_ROUTER_KEY"
    return data


@pytest.mark.parametrize("open_one", HTTP)
def test_every_service_on_the_public_port_needs_keys(open_one):
    data = _listening("0.0.0.0", api_keys_file="/etc/millrace/keys.yaml")
    Deployment.check(data, source="d.yaml")
    for app in data["applications"]:
        if app["name"] == open_one:
            del app["args"]["access"]
    with pytest.raises(InvalidInput) as problem:
        Deployment.check(data, source="d.yaml")
    assert problem.value.field == f"d.yaml: {open_one}.args.access.api_keys_file"
    assert "http_options.host" in problem.value.fix


def test_serves_own_default_listens_for_all_and_is_refused_too():
    data = _listening("0.0.0.0")
    del data["http_options"]["host"]
    with pytest.raises(InvalidInput, match="others reach it"):
        Deployment.check(data, source="d.yaml")


def test_to_be_open_must_be_said():
    Deployment.check(_listening("0.0.0.0", allow_unauthenticated=True), source="d.yaml")
