"""What a dashboard is made of, and the few shapes that its queries have."""

from dataclasses import dataclass
from typing import Literal

RUN = 'run=~"$run"'
NODE = 'instance=~"$instance"'
REPLICA = 'replica=~"$replica"'
RECENT = "10m"
FIRING = 'ALERTS{alertname=~"Millrace.*", alertstate="firing"}'


@dataclass(frozen=True)
class Query:
    """One line, or one per label set, of a panel.

    Attributes:
        legend: what Grafana writes beside it; `{{label}}` stands for a label's value.
        expr: PromQL.
        empty: why a healthy cluster under load has no data here; empty if it has.
    """

    legend: str
    expr: str
    empty: str = ""


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: what it shows.
        unit: Grafana's name of the unit, such as `s` or `percentunit`.
        says: what is healthy, and what to do about the rest.
        queries: what is drawn.
        warn, bad: values from which it is yellow and red; below them if `bad` is the lower.
        kind: `lines` over time, a `stack` of them, or the last `number`.
        width: of 24 columns.
        runbook: the alert whose runbook entry the panel links to.
    """

    title: str
    unit: str
    says: str
    queries: tuple[Query, ...]
    warn: float | None = None
    bad: float | None = None
    kind: Literal["lines", "stack", "number"] = "lines"
    width: int = 12
    runbook: str = ""


@dataclass(frozen=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """One page, its rows in the order in which somebody looks for a fault.

    Attributes:
        name: of its file; `millrace-` and this is its uid.
        title: after "Millrace / ".
        says: what it is for.
        variables: label to its query, for the choices at the top; `datasource` is always there.
        rows: from top to bottom.
    """

    name: str
    title: str
    says: str
    variables: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, from top to bottom."""
        return tuple(panel for row in self.rows for panel in row.panels)


def series(metric: str, where: str) -> str:
    """A gauge as it is."""
    return f"ray_millrace_{metric}{{{where}}}"


def rate(metric: str, where: str, by: str = "") -> str:
    """What a counter grows by in a second, summed by these labels."""
    return f"{_sum(by)} (rate(ray_millrace_{metric}_total{{{where}}}[$__rate_interval]))"


def recent(metric: str, where: str, by: str = "") -> str:
    """What a counter has grown by in the last ten minutes, its first count included.

    Ray exports a counter from its first event on, so `increase` alone never sees that event: a
    series that is younger than the window has grown by its whole value.
    """
    counter = f"ray_millrace_{metric}_total{{{where}}}"
    young = f"({counter} unless {counter} offset {RECENT})"
    return f"{_sum(by)} ({young} or increase({counter}[{RECENT}]))"


def quantile(share: float, metric: str, where: str, by: str = "") -> str:
    """A quantile of a histogram in seconds, over processes."""
    return f"histogram_quantile({share:g}, {buckets(f'ray_millrace_{metric}', where, by)})"


def median_and_p95(metric: str, where: str, by: str) -> tuple[Query, Query]:
    """What is usual, and what one in twenty exceeds; a line each for every value of a label."""
    return (
        Query(f"p50 {{{{{by}}}}}", quantile(0.5, metric, where, by)),
        Query(f"p95 {{{{{by}}}}}", quantile(0.95, metric, where, by)),
    )


def buckets(histogram: str, where: str, by: str = "") -> str:
    """What the buckets of a histogram grow by, summed by these labels."""
    labels = f"le, {by}" if by else "le"
    return f"{_sum(labels)} (rate({histogram}_bucket{{{where}}}[$__rate_interval]))"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"


def mean(metric: str, where: str, by: str = "") -> str:
    """The mean of a histogram in seconds, over processes."""
    parts = (
        f"{_sum(by)} (rate(ray_millrace_{metric}_{end}{{{where}}}[$__rate_interval]))"
        for end in ("sum", "count")
    )
    return " / ".join(parts)
