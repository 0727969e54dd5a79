"""The dashboard and the scrape configuration fit what the services export."""

import json
import re
from pathlib import Path

import yaml
from ray.util import metrics as ray_metrics

from services.observability import metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"ray_(millrace_[a-z_]+)")


def _exported(*holders: object) -> set[str]:
    """Names as Prometheus sees them: counters end in _total, histograms have series."""
    names: set[str] = set()
    for holder in holders or vars(metrics).values():
        for metric in vars(holder).values() if isinstance(holder, type) else ():
            if isinstance(metric, metrics.Gauge):
                names.add(metric._gauge.info["name"])
            elif isinstance(metric, ray_metrics.Counter):
                names.add(f"{metric.info['name']}_total")
            elif isinstance(metric, ray_metrics.Histogram):
                names |= {f"{metric.info['name']}_{end}" for end in ("bucket", "sum", "count")}
    return names


def _expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "millrace.json").read_text())
    variables = [entry["query"] for entry in dashboard["templating"]["list"]]
    return variables + [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]


def test_every_metric_named_in_the_dashboard_is_exported() -> None:
    exported = _exported()
    used = {name for expression in _expressions() for name in NAME.findall(expression)}
    assert len(used) > 20
    assert used <= exported


def test_every_service_with_metrics_has_a_panel() -> None:
    used = " ".join(_expressions())
    for service in ("run", "trainer", "bus", "router", "reward"):
        assert f"ray_millrace_{service}_" in used


def test_every_metric_of_the_reward_service_has_a_panel() -> None:
    used = {name for expression in _expressions() for name in NAME.findall(expression)}
    exported = {name for name in _exported(metrics.RewardMetrics) if not name.endswith("_count")}
    assert {name for name in exported if not name.endswith("_sum")} <= used


def test_panels_have_distinct_ids_and_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana" / "millrace.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


def test_prometheus_scrapes_the_port_that_the_nodes_export_on() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    cluster = yaml.safe_load((DEPLOY / "ray" / "cluster.yaml").read_text())
    targets = scrape["scrape_configs"][1]["static_configs"][0]["targets"]
    port = targets[0].rpartition(":")[2]
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    starts = [command for command in commands if "ray start" in command]
    assert len(starts) == 2
    assert all(f"--metrics-export-port={port}" in command for command in starts)
