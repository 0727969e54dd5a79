"""The dashboards are what their descriptions make, and show all that the code measures."""

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from ray.util import metrics as ray_metrics

from deploy.grafana import make_dashboards
from deploy.grafana.board import QueryDescription
from deploy.grafana.boards import ABSENT, BOARDS
from services.observability import metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
OURS = re.compile(r"ray_(millrace_[a-z_]+)")
VLLMS = re.compile(r"ray_vllm_([a-z_0-9]+)")
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


def _declared() -> dict[str, tuple[str, ...]]:
    """Every metric of the code, with the names that Prometheus sees of it."""
    names: dict[str, tuple[str, ...]] = {}
    for holder in vars(metrics).values():
        for metric in vars(holder).values() if isinstance(holder, type) else ():
            if isinstance(metric, metrics.Gauge):
                names[metric._gauge.info["name"]] = (metric._gauge.info["name"],)
            elif isinstance(metric, ray_metrics.Counter):
                names[metric.info["name"]] = (f"{metric.info['name']}_total",)
            elif isinstance(metric, ray_metrics.Histogram):
                name = metric.info["name"]
                names[name] = tuple(f"{name}_{end}" for end in ("bucket", "sum", "count"))
    return names


DECLARED = _declared()
EXPRESSIONS = [
    query.expr for board in BOARDS for panel in board.panels for query in panel.queries
] + [query for board in BOARDS for query in board.variables.values()]
USED = {name for expression in EXPRESSIONS for name in OURS.findall(expression)}


def test_the_files_are_what_the_descriptions_make() -> None:
    there = {file.name: file.read_text() for file in make_dashboards.FOLDER.iterdir()}
    assert there == make_dashboards.files(), "run `python -m deploy.grafana.make_dashboards`"


def test_every_metric_has_a_panel_or_a_reason_to_have_none() -> None:
    shown = {name for name, exported in DECLARED.items() if USED & set(exported)}
    assert len(DECLARED) > 90
    assert DECLARED.keys() - shown == ABSENT.keys()
    assert all(len(reason) > 20 for reason in ABSENT.values())


def test_every_metric_in_a_panel_is_exported() -> None:
    exported = {name for names in DECLARED.values() for name in names}
    assert exported >= USED


def test_every_metric_of_vllm_in_a_panel_is_one_of_this_vllm() -> None:
    package = importlib.util.find_spec("vllm")  # importing it takes longer than all tests here
    assert package is not None
    assert package.origin is not None
    source = (Path(package.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
    used = {name for expression in EXPRESSIONS for name in VLLMS.findall(expression)}
    assert len(used) > 10
    for name in used:
        # vLLM itself names a histogram iteration_tokens_total
        assert {f'"vllm:{name}"', f'"vllm:{SUFFIX.sub("", name)}"'} & set(
            re.findall(r'"vllm:[a-z_0-9]+"', source)
        ), name


def test_both_queries_of_a_pair_of_quantiles_say_why_they_may_have_no_data() -> None:
    pair = QueryDescription(p50_and_p95="workspace_open_seconds", no_data="nobody opened one")
    assert [query.no_data for query in pair.queries("")] == ["nobody opened one"] * 2
    assert [query.legend for query in pair.queries("")] == ["p50", "p95"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_panels_lie_beside_each_other_and_explain_themselves(board) -> None:
    dashboard = json.loads((make_dashboards.FOLDER / f"{board.name}.json").read_text())
    assert dashboard["uid"] == f"millrace-{board.name}"
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    taken = Counter(
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(taken.values()) == 1
    assert max(x for x, _ in taken) == 23
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel, described in zip(panels, board.panels, strict=True):
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["expr"] for target in panel["targets"]] == [
            query.expr for query in described.queries
        ]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboard_has_the_variables_that_its_queries_use(board) -> None:
    used = {
        name
        for panel in board.panels
        for query in panel.queries
        for name in re.findall(r"\$(\w+)", query.expr)
    }
    assert used - {"__rate_interval"} == board.variables.keys()


def test_grafana_is_given_the_source_and_the_folder_that_the_dashboards_name() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (prometheus,) = source["datasources"]
    assert prometheus["type"] == "prometheus"
    assert prometheus["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    provider = yaml.safe_load((provisioning / "dashboards" / "millrace.yml").read_text())
    assert provider["providers"][0]["options"] == {"path": "$MILLRACE_DASHBOARDS"}
