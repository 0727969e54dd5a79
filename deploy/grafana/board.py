"""The description of a dashboard, as its YAML file has it, and the PromQL of its queries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

RECENT = "10m"
FIRING = 'ALERTS{alertname=~"Millrace.*", alertstate="firing"}'


@dataclass(frozen=True)
class Query:
    """One line, or one per label set, of a panel.

    Attributes:
        legend: Grafana's text for it; `{{label}}` stands for a label's value.
        expr: PromQL.
        no_data: why a healthy cluster under load has no data here; empty if it has.
    """

    legend: str
    expr: str
    no_data: str = ""


class Description(BaseModel):
    """A part of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class QueryDescription(Description):
    """One query, by one of the shapes below or by its PromQL.

    Attributes:
        legend: see `Query`; of `p50_and_p95` it is the labels of `by`.
        expr: PromQL.
        series: a gauge as it is.
        rate: growth of a counter a second.
        recent: growth of a counter in the last ten minutes.
        mean: of a histogram.
        p95, p99: quantiles of a histogram.
        p50_and_p95: two queries.
        by: labels to sum by.
        matchers: of labels, besides the board's.
        cluster_wide: without the board's matchers.
        no_data: see `Query`.
    """

    legend: str = ""
    expr: str = ""
    series: str = ""
    rate: str = ""
    recent: str = ""
    mean: str = ""
    p95: str = ""
    p99: str = ""
    p50_and_p95: str = ""
    by: str = ""
    matchers: str = ""
    cluster_wide: bool = False
    no_data: str = ""

    def queries(self, matchers: str) -> tuple[Query, ...]:
        """The queries that it stands for, on a board with these matchers."""
        if metric := self.p50_and_p95:
            legend = f" {{{{{self.by}}}}}" if self.by else ""
            return tuple(
                Query(
                    f"{name}{legend}", SHAPES[name](_full(metric), matchers, self.by), self.no_data
                )
                for name in ("p50", "p95")
            )
        expr = self.expr
        if not expr:
            (name,) = SHAPES.keys() & self.model_fields_set
            chosen = [self.matchers] if self.cluster_wide else [matchers, self.matchers]
            where = ", ".join(filter(None, chosen))
            expr = SHAPES[name](_full(getattr(self, name)), where, self.by)
        return (Query(self.legend, expr, self.no_data),)


class Panel(Description):
    """One picture.

    Attributes:
        title: what it shows.
        description: what is healthy, and what to do about the rest.
        unit: Grafana's name of the unit, such as `s` or `percentunit`.
        warn, bad: values from which it is yellow and red; below them if `bad` is the lower.
        kind: `lines` over time, a `stack` of them, or the last `number`.
        width: of 24 columns.
        runbook: the alert whose runbook entry the panel links to.
        queries: what is drawn.
    """

    title: str
    description: str
    unit: str = "none"
    kind: Literal["lines", "stack", "number"] = "lines"
    width: int = 8
    warn: int | float | None = None
    bad: int | float | None = None
    runbook: str = ""
    queries: tuple[Query, ...]


class Row(Description):
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


class Board(Description):
    """One dashboard, its rows in the order in which somebody looks for a fault.

    Attributes:
        name: of its file; `millrace-` and this is its uid.
        title: after "Millrace / ".
        description: what it is for.
        variables: label to its query, for the choices at the top; `datasource` is always there.
        rows: from top to bottom.
    """

    name: str
    title: str
    description: str
    variables: dict[str, str]
    rows: tuple[Row, ...]

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Replace each description of a query by its queries."""
        matchers = data.pop("matchers")
        for row in data["rows"]:
            for panel in row["panels"]:
                described = map(QueryDescription.model_validate, panel["queries"])
                panel["queries"] = [one for item in described for one in item.queries(matchers)]
        return data

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, from top to bottom."""
        return tuple(panel for row in self.rows for panel in row.panels)


def _full(metric: str) -> str:
    """A name without Ray's prefix is one of ours."""
    return metric if metric.startswith("ray_") else f"ray_millrace_{metric}"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"


def _rate(metric: str, where: str, by: str) -> str:
    return f"{_sum(by)} (rate({metric}{{{where}}}[$__rate_interval]))"


def _recent(metric: str, where: str, by: str) -> str:
    """Growth of a counter in the last ten minutes, its first count included.

    Ray exports a counter from its first event on, so `increase` alone never sees that event: a
    series that is younger than the window has grown by its whole value.
    """
    counter = f"{metric}_total{{{where}}}"
    young = f"({counter} unless {counter} offset {RECENT})"
    return f"{_sum(by)} ({young} or increase({counter}[{RECENT}]))"


def _mean(metric: str, where: str, by: str) -> str:
    return " / ".join(_rate(f"{metric}_{end}", where, by) for end in ("sum", "count"))


def _quantile(share: float) -> Callable[[str, str, str], str]:
    def quantile(metric: str, where: str, by: str) -> str:
        labels = f"le, {by}" if by else "le"
        return f"histogram_quantile({share:g}, {_rate(f'{metric}_bucket', where, labels)})"

    return quantile


SHAPES: dict[str, Callable[[str, str, str], str]] = {
    "series": lambda metric, where, by: f"{metric}{{{where}}}",
    "rate": lambda metric, where, by: _rate(f"{metric}_total", where, by),
    "recent": _recent,
    "mean": _mean,
    "p50": _quantile(0.5),
    "p95": _quantile(0.95),
    "p99": _quantile(0.99),
}
"""PromQL of a metric, with these matchers, summed by these labels."""
