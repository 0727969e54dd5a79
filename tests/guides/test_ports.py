"""docs/operating.md has every port that a Ray cluster of Millrace takes, and how to change it."""

import re

import yaml
from ray._private import ray_constants
from ray._private.parameter import RayParams
from ray.scripts.scripts import cli

from tests.guides.blocks import ROOT, blocks

PAGE = "docs/operating.md"
ROWS = dict(
    re.findall(r"^\| (\d+) \| [^|]+ \| (.*) \|$", (ROOT / PAGE).read_text(encoding="utf-8"), re.M)
)
START = cli.commands["start"]


def test_a_port_of_ray_is_rays_default_and_its_option_is_one_of_ray_start() -> None:
    defaults = {option: one.default for one in START.params for option in one.opts}
    defaults["--port"] = ray_constants.DEFAULT_PORT
    shown = {
        option: int(port)
        for port, how in ROWS.items()
        for option in re.findall(r"`ray start (--[\w-]+)`", how)
    }
    assert len(shown) == 5
    for option, port in shown.items():
        default = defaults[option]
        assert not isinstance(default, int) or default == port, option


def test_a_port_of_serve_is_that_of_the_laptops_deployment() -> None:
    deployment = yaml.safe_load((ROOT / "deploy" / "laptop.yaml").read_text(encoding="utf-8"))
    args = {one["name"]: one["args"] for one in deployment["applications"]}
    assert "router.args.listen.port" in ROWS[str(args["router"]["listen"]["port"])]
    assert "http_options.port" in ROWS[str(deployment["http_options"]["port"])]


def test_the_second_ray_takes_no_port_twice_and_none_of_the_first() -> None:
    (words,) = (
        words
        for block in blocks(PAGE)
        for words in block.commands
        if words[:2] == ["ray", "start"] and any(word.startswith("--port=") for word in words)
    )
    chosen = START.make_context("start", words[2:]).params
    names = (
        *("ray_client_server_port", "dashboard_port", "dashboard_agent_listen_port"),
        *("metrics_export_port", "min_worker_port", "max_worker_port"),
    )
    ports = RayParams(gcs_server_port=int(chosen["port"]), **{one: chosen[one] for one in names})
    ports.update_pre_selected_port()  # Ray refuses a port that two of its parts would take
    assert {str(chosen["port"]), *(str(chosen[one]) for one in names)}.isdisjoint(ROWS)
