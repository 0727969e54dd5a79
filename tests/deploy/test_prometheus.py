"""What Prometheus is given: whom to scrape, which rules, and what each alert means."""

from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_prometheus_scrapes_the_port_that_the_nodes_export_on() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    cluster = yaml.safe_load((DEPLOY / "ray" / "cluster.yaml").read_text())
    targets = scrape["scrape_configs"][1]["static_configs"][0]["targets"]
    port = targets[0].rpartition(":")[2]
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    starts = [command for command in commands if "ray start" in command]
    assert len(starts) == 2
    assert all(f"--metrics-export-port={port}" in command for command in starts)
