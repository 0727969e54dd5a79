"""A real Prometheus beside a real cluster under load: every panel and every record has data."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.grafana.boards import BOARDS
from millrace_tools.client.runs_client import RunsClient
from tests.cluster.conftest import MODEL_NAME, Cluster, model_dir, started_cluster
from tests.deploy.test_prometheus import filled_in, rules
from tests.operations.prometheus_process import Prometheus

pytestmark = [
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no prometheus: apt-get install prometheus"
    ),
    pytest.mark.timeout(1200),
]
__all__ = ["model_dir"]
READY_S, SEEN_S = 500.0, 300.0
METRIC = re.compile(r"ray_\w+?(?=_total\b|_bucket\b|_sum\b|_count\b|\b)")
QUERIES = [query for board in BOARDS for panel in board.panels for query in panel.queries]
AFTER_A_DEATH = "ray_millrace_router_failovers_total"
"""What a killed replica gives data, whatever else it meets."""


@pytest.fixture(scope="module")
def cluster(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started_cluster(model_dir, tmp_path_factory.mktemp("cluster"), ready_s=READY_S) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


@pytest.fixture(scope="module")
def run_id(cluster: Cluster, prometheus: Prometheus) -> str:
    """A run that goes on until the last test stops it."""
    with RunsClient(cluster.url) as client:
        return client.start(cluster.run_config(steps=5000)).run_id


def test_every_query_of_a_panel_and_every_record_has_data(
    prometheus: Prometheus, run_id: str
) -> None:
    wanted = {filled_in(query.expr) for query in QUERIES if not query.no_data}
    wanted |= {rule["record"] for rule in rules() if "record" in rule and not _may_be_empty(rule)}
    assert len(wanted) > 100

    def seen() -> bool:
        wanted.difference_update([query for query in wanted if prometheus.has_data(query)])
        return not wanted

    prometheus.wait_for(seen, wanted, timeout_s=SEEN_S)


def test_the_choices_of_every_dashboard_have_values(prometheus: Prometheus, run_id: str) -> None:
    for query in {query for board in BOARDS for query in board.variables.values()}:
        label_values = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert label_values is not None, query
        selector, label = label_values.groups()
        values = prometheus.ask(f"label/{label}/values", **{"match[]": selector})
        assert values, query
        assert label != "run" or values == [run_id]


def test_no_rule_fails_and_nothing_is_critical_while_all_is_well(
    prometheus: Prometheus, run_id: str
) -> None:
    found = prometheus.rules()
    assert len(found) == len(rules())
    assert [rule for rule in found if rule["health"] != "ok"] == []
    critical = (rule for rule in found if rule.get("labels", {}).get("severity") == "critical")
    firing = {rule["name"] for rule in critical if rule["state"] == "firing"}
    assert firing <= {"MillraceTargetDown"}, "but that this machine may be slow to be scraped"


def test_a_replicas_death_shows_in_the_panel_that_is_about_it(
    cluster: Cluster, prometheus: Prometheus, run_id: str
) -> None:
    answer = cluster.openai.chat.completions.with_raw_response.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "a plus b, minus c"}],
        max_tokens=600,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    serving = answer.headers["x-millrace-replica"]
    (victim,) = (one.pid for one in cluster.table().members if one.replica_id == serving)
    pieces = iter(answer.parse())
    while not next(pieces).choices[0].delta.content:
        pass
    os.kill(victim, signal.SIGKILL)
    assert list(pieces)
    (due,) = (query for query in QUERIES if AFTER_A_DEATH in query.expr)
    assert due.no_data
    expression = filled_in(due.expr)
    prometheus.wait_for(lambda: prometheus.has_data(expression), expression, timeout_s=SEEN_S)


def test_a_run_that_is_stopped_is_counted_and_no_longer_watched(
    cluster: Cluster, prometheus: Prometheus, run_id: str
) -> None:
    with RunsClient(cluster.url) as client:
        client.control(run_id, "stop")
    counted = f'ray_millrace_run_ended_total{{run="{run_id}", state="stopped"}}'
    open_groups = f'ray_millrace_run_groups_in_flight{{run="{run_id}"}}'
    prometheus.wait_for(
        lambda: prometheus.has_data(counted) and not prometheus.has_data(open_groups),
        "the end of the run",
        timeout_s=SEEN_S,
    )


def _may_be_empty(rule: dict[str, str]) -> bool:
    """Whether each panel about the record's metrics says why it may have no data."""
    metrics = set(METRIC.findall(rule["expr"]))
    about = [query for query in QUERIES if metrics & set(METRIC.findall(query.expr))]
    assert about, f"no panel is about {rule['record']}"
    return all(query.no_data for query in about)
