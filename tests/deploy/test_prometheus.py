"""What Prometheus is given: whom to scrape, which rules, and that each alert does its work."""

import re
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.boards import BOARDS
from tests.deploy.test_dashboards import DECLARED, OURS

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
VARIABLES = {"$__rate_interval": "1m", "$run": ".*", "$instance": ".*", "$replica": ".*"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus"
)


def promtool(*arguments: str | Path) -> None:
    """Run promtool; its output is the failure's text."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def rules() -> tuple[dict[str, Any], ...]:
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return tuple(rule for group in groups for rule in group["rules"])


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def filled_in(expression: str) -> str:
    """A panel's query as Grafana sends it when everything is chosen."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@needs_promtool
def test_prometheus_accepts_its_configuration_and_all_rules() -> None:
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("check", "rules", *RULES)


@needs_promtool
def test_prometheus_accepts_the_configuration_for_kubernetes(tmp_path: Path) -> None:
    """All but how pods are found: Debian's promtool is built without Kubernetes."""
    content = yaml.safe_load((PROMETHEUS / "kubernetes.yml").read_text())
    (job,) = content["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    shipped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert content["global"] == shipped["global"]
    assert job["job_name"] == shipped["scrape_configs"][0]["job_name"]
    (tmp_path / "rules").symlink_to(PROMETHEUS / "rules")
    file = tmp_path / "kubernetes.yml"
    file.write_text(yaml.safe_dump(content))
    promtool("check", "config", file)


@needs_promtool
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_stay_silent_when_not(file: Path) -> None:
    promtool("test", "rules", file)


@needs_promtool
def test_prometheus_understands_the_query_of_every_panel(tmp_path: Path) -> None:
    queries = [query for board in BOARDS for panel in board.panels for query in panel.queries]
    made = [
        {"record": f"panel:query:{number}", "expr": filled_in(query.expr)}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))
    promtool("check", "rules", file)


def test_every_alert_is_shown_to_fire_and_to_stay_silent() -> None:
    expected: dict[str, set[bool]] = defaultdict(set)
    for file in TESTS:
        for test in yaml.safe_load(file.read_text())["tests"]:
            for check in test["alert_rule_test"]:
                expected[check["alertname"]].add(bool(check["exp_alerts"]))
    assert len(alerts()) > 40
    assert expected == {name: {True, False} for name in alerts()}


def test_rules_ask_for_metrics_and_records_that_exist() -> None:
    exported = {name for names in DECLARED.values() for name in names}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert set(OURS.findall(rule["expr"])) <= exported, rule
        assert set(re.findall(r"millrace:\w+:\w+", rule["expr"])) <= recorded, rule


def test_alerts_count_events_by_records_which_see_the_first_of_a_kind() -> None:
    for name, rule in alerts().items():
        assert "increase(" not in rule["expr"], name


def test_every_label_value_that_an_alert_asks_for_is_one_that_the_code_writes() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "services").rglob("*.py"))
    for name, rule in alerts().items():
        for _, value in re.findall(r'(\w+)!?=~?"([^"]+)"', rule["expr"].replace("job=", "")):
            for word in value.split("|"):
                assert f'"{word}"' in source or ".*" in word, (name, word)


def test_every_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert {"summary", "description"} < rule["annotations"].keys()


def test_the_two_ways_to_find_nodes_are_each_good_alone() -> None:
    text = (PROMETHEUS / "prometheus.yml").read_text()
    head, found = text.split("scrape_configs:\n")
    listed = yaml.safe_load(found)
    named = yaml.safe_load(found[found.index("# - job_name") :].replace("# ", "").replace("#", ""))
    for (job,) in (listed, named):
        assert job["job_name"] == "millrace"
        assert job["metric_relabel_configs"] == listed[0]["metric_relabel_configs"]
    assert "scrape_interval" in head
    port = named[0]["static_configs"][0]["targets"][0].rpartition(":")[2]
    files = (ROOT / "deploy" / "ray").glob("*.yaml")
    starts = [
        line for file in files for line in file.read_text().splitlines() if "ray start" in line
    ]
    starts = [line for line in starts if not line.lstrip().startswith("#")]
    assert len(starts) >= 2
    assert all(f"--metrics-export-port={port}" in line for line in starts), starts
